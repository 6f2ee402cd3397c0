// Is it well? A sentence, the figures that matter, the last ten minutes, and the lives of the workers.
import { Plot } from "./charts.js";
import { el, say, table } from "./dom.js";
import { bytes, count, dated, duration, percent, rate, short } from "./format.js";

const FIGURES = [
  ["elements", "Elements in", "taken in by all workers"],
  ["outputs", "Outputs", "final, in all sinks"],
  ["latency", "Latency", "from taking in to stored"],
  ["lag", "Lag", "age of the oldest element that is not final"],
  ["memory", "Memory", "resident, all workers"],
  ["processor", "Processor", "cores in use by workers"],
];

export class Well {
  constructor() {
    this.verdict = el("p", { class: "verdict" });
    this.figures = {};
    const figures = FIGURES.map(([key, title, hint]) => {
      const [value, detail] = [el("span", { class: "value", id: `figure-${key}` }, "–"), el("span", { class: "detail" })];
      this.figures[key] = { value, detail };
      return el("div", { class: "figure", title: hint }, el("dt", null, title), el("dd", null, value, detail));
    });
    this.plots = [
      new Plot({ title: "Elements and outputs", format: rate, series: [{ name: "in", column: "elements", colour: "one" }, { name: "out", column: "released", colour: "two" }] }),
      new Plot({ title: "Latency", format: duration, series: [{ name: "p50", column: "p50", colour: "one" }, { name: "p99", column: "p99", colour: "two" }] }),
      new Plot({ title: "Lag of the minimal time", format: duration, series: [{ name: "lag", column: "lag_ms", colour: "one" }] }),
      new Plot({ title: "Waiting", format: short, series: [{ name: "to enter", column: "waiting", colour: "one" }, { name: "barriers", column: "held", colour: "two" }, { name: "sinks", column: "unstored", colour: "three" }] }),
      new Plot({ title: "Memory", format: bytes, series: [{ name: "resident", column: "resident_bytes", colour: "one" }] }),
      new Plot({ title: "Processor", format: (cores) => cores.toFixed(2), series: [{ name: "cores", column: "cpu", colour: "one" }] }),
    ];
    this.lives = el("div");
    this.plotted = el("section", { "aria-label": "The last ten minutes" }, el("h2", null, "The last ten minutes"), el("div", { class: "plots" }, this.plots.map((plot) => plot.root)));
    this.root = el("div", null, this.verdict, (this.figuresList = el("dl", { class: "figures" }, figures)), this.plotted, el("section", null, el("h2", null, "Lives"), this.lives));
  }

  draw(store) {
    const { overview } = store;
    const { progress } = overview;
    say(this.verdict, verdict(overview));
    this.verdict.classList.toggle("bad", Boolean(overview.error));
    this.plotted.hidden = this.figuresList.hidden = Boolean(overview.stored);
    // Workers of another life count from 0 again.
    const all = overview.recoveries ? "in this life" : "in all";
    const latest = (name) => store.column(name).at(-1);
    const shown = {
      elements: [rate(latest("elements")), `${count(progress.elements)} ${all}`],
      outputs: [rate(latest("released")), `${count(progress.released)} ${all}`],
      latency: [duration(progress.latencyMs?.p50), ["p75", "p95", "p99"].filter((name) => progress.latencyMs?.[name] != null).map((name) => `${name} ${duration(progress.latencyMs[name])}`).join(", ")],
      lag: [duration(progress.minimalTimeLagMs), progress.minimalTimeLagMs ? "" : "all elements are final"],
      memory: [bytes(latest("resident_bytes")), `fullest machine at ${percent(Math.max(0, ...overview.workers.map((worker) => worker.memory)))}`],
      processor: [latest("cpu")?.toFixed(2) ?? "–", `${overview.workers.length} workers`],
    };
    for (const [key, [value, detail]] of Object.entries(shown)) {
      say(this.figures[key].value, value);
      say(this.figures[key].detail, detail);
    }
    if (!overview.stored) this.plots.forEach((plot) => plot.draw(store));
    this.drawLives(store);
  }

  drawLives({ events, overview }) {
    const rows = lives(events, overview).map((life) => [
      String(life.number),
      life.begun ? dated(life.begun) : "–",
      life.ended ? duration(life.ended - (life.begun ?? life.ended)) : "goes on",
      life.with,
      life.why,
    ]);
    const text = JSON.stringify(rows);
    if (text === this.livesText) return;
    this.livesText = text;
    this.lives.replaceChildren(table("Lives of the workers", ["Life", "Began", "#Lasted", "Began with", "Ended because"], rows.reverse(), { empty: "none yet" }));
  }

  recolour() {
    this.plots.forEach((plot) => plot.forget());
  }

  close() {
    this.plots.forEach((plot) => plot.close());
  }
}

function verdict(overview) {
  if (overview.stored) return `This query is not running here: what you see is its checkpoint, ${overview.stored}.`;
  if (overview.error) return `It has failed: ${overview.error}`;
  if (!overview.active) return "It is over: all that was final is stored.";
  const lag = overview.progress.minimalTimeLagMs ?? 0;
  const since = `for ${duration(overview.at - overview.begun)}`;
  const recovered = overview.recoveries ? ` It has recovered ${overview.recoveries === 1 ? "once" : `${overview.recoveries} times`}.` : "";
  if (overview.state !== "Running") return `${overview.state}.${recovered}`;
  if (lag > 5_000) return `Running ${since}, and ${duration(lag)} behind: see where it is slow.${recovered}`;
  return `Running ${since}, and keeping up.${recovered}`;
}

/** The lives that the events tell of. */
export function lives(events, overview) {
  const found = new Map();
  for (const event of events) {
    const life = found.get(event.life) ?? { number: event.life, begun: null, ended: null, with: "", why: "" };
    if (event.kind === "begun") [life.begun, life.with] = [event.at, event.text];
    if (event.kind === "running") life.begun ??= event.at;
    if (event.kind === "lost" || event.kind === "failed") [life.ended, life.why] = [event.at, event.text];
    if (event.kind === "ended") [life.ended, life.why] = [event.at, "the query was over"];
    found.set(event.life, life);
  }
  const all = [...found.values()].sort((one, other) => one.number - other.number);
  // A version that takes over in the same processes begins a life of its own.
  all.forEach((life, place) => {
    if (!life.ended && all[place + 1]) [life.ended, life.why] = [all[place + 1].begun, "another version took over"];
  });
  return all;
}

