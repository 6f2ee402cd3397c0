// Where is it slow? The flow with its load, what holds the minimal time back, fronts, sinks, workers.
import { el, say, table } from "./dom.js";
import { bytes, count, duration, elementTime, percent, rate, short } from "./format.js";
import { FlowGraph } from "./graph.js";

export class Slow {
  constructor() {
    this.holding = el("p", { class: "verdict" });
    this.place = el("div", { class: "flow", tabindex: "-1" });
    this.detail = el("aside", { class: "detail-of-step", "aria-live": "polite" });
    this.fronts = el("div");
    this.sinks = el("div");
    this.workers = el("div");
    this.chosen = null;
    this.root = el(
      "div",
      null,
      this.holding,
      (this.both = el("div", { class: "flow-and-detail" }, this.place, this.detail)),
      el("section", null, el("h2", null, "Fronts"), this.fronts),
      el("section", null, el("h2", null, "Sinks"), el("p", { class: "hint" }, "Output waits at its barrier until nothing before it can change any more; then for the sink to store it."), this.sinks),
      el("section", null, el("h2", null, "Workers"), this.workers),
    );
  }

  draw(store) {
    this.store = store;
    const { overview, shape } = store;
    if (shape && this.shape !== shape) {
      this.shape = shape;
      this.graph = new FlowGraph(shape, (id) => this.choose(id));
      this.place.replaceChildren(this.graph.root);
      if (!shape.steps.some((step) => step.id === this.chosen)) this.chosen = null;
    }
    say(this.holding, holding(overview));
    this.graph?.draw(store, this.chosen);
    this.drawDetail();
    this.fronts.replaceChildren(
      table(
        "Fronts",
        ["Front", "#Lag", "#Backlog", "#In flight", "Promise", "Reached", "Position", "#Late", "Worker"],
        overview.fronts.map((front) => [
          el("span", { class: isHolding(overview, front) ? "holds" : null }, named(front.front, front.partition, overview.fronts, "front")),
          duration(front.lagMs),
          count(front.waiting),
          count(front.ahead),
          front.over ? "ended" : elementTime(front.promised),
          elementTime(front.reached),
          el("code", null, front.position || "–"),
          count(front.late),
          front.worker == null ? null : String(front.worker),
        ]),
      ),
    );
    this.sinks.replaceChildren(
      table(
        "Sinks",
        ["Sink", "#Outputs", "#At its barrier", "#Taken back", "#Unstored", "Worker"],
        overview.sinks.map((sink) => [
          named(sink.sink, sink.partition, overview.sinks, "sink"),
          count(sink.released),
          count(sink.held),
          count(sink.takenBack),
          sink.unstored ? `${count(sink.unstored)} (${bytes(sink.unstoredBytes)})` : "0",
          String(sink.worker),
        ]),
      ),
    );
    this.workers.replaceChildren(
      table(
        "Workers",
        ["Worker", "#Process", "#Cores", "#In steps", "#Items", "#Memory"],
        overview.workers.map((worker, place) => [
          String(worker.worker),
          String(worker.pid),
          store.rate((look) => look.workers[place]?.cpuSeconds)?.toFixed(2),
          percent(store.rate((look) => look.workers[place]?.busySeconds)),
          short(worker.items),
          bytes(worker.residentBytes),
        ]),
      ),
    );
  }

  choose(id) {
    this.chosen = this.chosen === id ? null : id;
    this.detailText = null;
    this.graph.draw(this.store, this.chosen);
    this.drawDetail();
    if (this.chosen && window.matchMedia("(max-width: 1000px)").matches) this.detail.scrollIntoView({ block: "nearest" });
  }

  drawDetail() {
    const step = this.shape?.steps.find((one) => one.id === this.chosen);
    const known = step && this.store.overview.steps[step.id];
    this.both.classList.toggle("with-detail", Boolean(known));
    if (!known) {
      if (this.detailText !== "") this.detail.replaceChildren(el("p", { class: "quiet" }, "Choose a step to see its function, its hot keys and its workers."));
      this.detailText = "";
      return;
    }
    const [through, given, busy] = ["in", "out", "busySeconds"].map((name) => this.store.rate((look) => look.steps[step.id]?.[name]));
    this.detailText = step.id;
    this.detail.replaceChildren(
      el("h2", null, step.name, el("span", { class: "kind" }, step.kind)),
      el("p", { class: "where" }, el("code", null, step.where)),
      step.functions.length ? el("ul", { class: "functions" }, step.functions.map((text) => el("li", null, el("code", null, text)))) : null,
      el(
        "dl",
        { class: "pairs" },
        pair("In", `${rate(through)}, ${short(known.in)} in all`),
        pair("Out", `${rate(given)}, ${short(known.out)} in all`),
        pair("Busy", busy == null ? "–" : percent(busy / (this.store.overview.workers.length || 1))),
        pair("Replays", count(known.replays)),
        pair("Keys", count(known.keys)),
        pair("Held", count(known.held)),
      ),
      known.hotKeys.length
        ? el("div", null, el("h3", null, "Hot keys"), el("ul", { class: "bars" }, known.hotKeys.map(([key, share]) => el("li", null, el("code", null, key), el("span", { class: "bar" }, el("i", { "width-share": share })), el("span", { class: "n" }, percent(share))))))
        : null,
      el("h3", null, "By worker"),
      table("This step by worker", ["Worker", "#In", "#Keys", "#Replays", "#Busy s"], known.byWorker.map((own, worker) => [String(worker), short(own.in), short(own.keys), short(own.replays), own.busySeconds.toFixed(1)])),
    );
  }

  recolour() {}

  close() {}
}

const pair = (name, value) => [el("dt", null, name), el("dd", null, value)];

function named(name, partition, all, kind) {
  return all.filter((one) => one[kind] === name).length > 1 ? `${name}, partition ${partition}` : name;
}

const isHolding = ({ heldBack, progress }, front) => (progress.minimalTimeLagMs ?? 0) >= SOON_MS && heldBack?.front === front.front && heldBack.partition === front.partition;

/** Less than this is the way of an element through the flow. */
const SOON_MS = 1_000;

function holding({ heldBack, stored, fronts, progress }) {
  if (stored) return "This is the flow as of its last cut. It is not running here.";
  if (!heldBack) return "Nothing holds the minimal time back: all fronts have ended.";
  const lag = progress.minimalTimeLagMs ?? 0;
  if (lag < SOON_MS) return `Nothing holds the minimal time back: the oldest element that is not final is ${duration(lag)} old.`;
  if (heldBack.by === "work") return "Work in flight holds the minimal time back, not a front: look for the busiest step.";
  if (heldBack.front == null) return "The minimal time waits for a front that has not begun.";
  return `The minimal time is as far as front ${named(heldBack.front, heldBack.partition, fronts, "front")} has promised${heldBack.time == null ? "" : `, ${elementTime(heldBack.time)}`}.`;
}
