// What happened? The cuts and the events on one line of time, then as lists.
import { el, svg, table } from "./dom.js";
import { bytes, count, dated, duration, elementTime, time } from "./format.js";

const WORDS = {
  begun: "A life of the workers began",
  running: "All workers run",
  lost: "The life was lost",
  upgrading: "Another version is to take over",
  upgraded: "The new version runs",
  rescaling: "Another number of workers is to take over",
  rescaled: "The other workers run",
  kept: "The old version, or number of workers, goes on",
  shadow: "A version runs beside",
  stopping: "It was asked to stop",
  ended: "The query has ended",
  failed: "The query has failed",
};
const SERIOUS = new Set(["lost", "failed", "kept"]);

export class Happened {
  constructor() {
    this.line = el("div", { class: "timeline" });
    this.events = el("div");
    this.cuts = el("div");
    this.root = el(
      "div",
      null,
      el("section", null, el("h2", null, "Time line"), el("p", { class: "hint" }, "A bar for each cut, as high as it took long; a mark for each event."), this.line),
      el("section", null, el("h2", null, "Events"), this.events),
      el("section", null, el("h2", null, "Cuts"), this.cuts),
    );
  }

  draw(store) {
    const { cuts, events, overview } = store;
    const drawn = `${cuts.length} ${cuts.at(-1)?.number} ${events.length} ${this.line.clientWidth} ${Math.floor(Date.now() / 5_000)}`;
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    this.line.replaceChildren(timeline(cuts, events, this.line.clientWidth, overview));
    this.events.replaceChildren(
      table("Events", ["When", "Life", "What", ""], [...events].reverse().map((event) => [dated(event.at), String(event.life), el("span", { class: SERIOUS.has(event.kind) ? "bad" : null }, WORDS[event.kind] ?? event.kind), event.text])),
    );
    this.cuts.replaceChildren(
      table(
        "Cuts",
        ["Cut", "When", "At the time", "#Took", "#Rows", "#Bytes", "Holds"],
        [...cuts].reverse().slice(0, 25).map((cut) => [String(cut.number), dated(cut.at), elementTime(cut.time), cut.ms == null ? "–" : duration(cut.ms), count(cut.rows), bytes(cut.bytes), cut.whole ? "everything" : "what changed"]),
        { empty: "no cuts: the query has no checkpointLocation, or is just beginning" },
      ),
    );
  }

  recolour() {}

  close() {}
}

function timeline(cuts, events, width, overview) {
  const [height, base] = [110, 84];
  const all = [...cuts, ...events].map((one) => one.at);
  if (!all.length || !width) return el("p", { class: "quiet" }, "nothing yet");
  const end = overview.stored ? Math.max(...all) : Date.now();
  // The events of a long run are further back than the cuts that are kept: show those of the last hour.
  const begin = overview.stored ? Math.min(...all) : Math.max(Math.min(...all), end - 3_600_000);
  const x = (at) => 4 + ((at - begin) / Math.max(1, end - begin)) * (width - 8);
  const most = Math.max(1, ...cuts.map((cut) => cut.ms ?? 0));
  const shown = (one) => one.at >= begin;
  const bar = (cut) => {
    const tall = cut.ms == null ? 8 : 4 + (56 * cut.ms) / most;
    return svg("rect", { class: cut.whole ? "cut whole" : "cut", x: x(cut.at) - 1, y: base - tall, width: 2, height: tall }, svg("title", null, `cut ${cut.number}, ${time(cut.at)}: ${cut.ms == null ? "" : `${duration(cut.ms)}, `}${bytes(cut.bytes)}`));
  };
  const mark = (event) =>
    svg("g", { class: SERIOUS.has(event.kind) ? "mark serious" : "mark", transform: `translate(${x(event.at)} 0)` }, svg("line", { y1: 14, y2: base }), svg("circle", { cy: 10, r: 4 }), svg("title", null, `${time(event.at)}: ${WORDS[event.kind] ?? event.kind} ${event.text}`));
  return svg(
    "svg",
    { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${cuts.length} cuts and ${events.length} events; the lists below tell each` },
    svg("line", { class: "base", x1: 0, x2: width, y1: base, y2: base }),
    ...cuts.filter(shown).map(bar),
    // What is serious is drawn last, over the rest.
    ...events.filter(shown).sort((one, other) => SERIOUS.has(one.kind) - SERIOUS.has(other.kind)).map(mark),
    svg("text", { class: "when", x: 4, y: height - 8 }, time(begin)),
    svg("text", { class: "when", x: width - 4, y: height - 8, "text-anchor": "end" }, overview.stored ? time(end) : "now"),
  );
}
