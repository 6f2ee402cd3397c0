// The flow as a graph: laid out once for each version, its figures written anew every second.
import dagre from "@dagrejs/dagre";
import { say, svg } from "./dom.js";
import { percent, rate, short } from "./format.js";

const [WIDTH, HEIGHT] = [176, 66];

export class FlowGraph {
  /** `chosen` is called with the id of a step that was clicked. */
  constructor(shape, chosen) {
    this.steps = new Map();
    const layout = new dagre.graphlib.Graph({ multigraph: true });
    layout.setGraph({ rankdir: window.matchMedia("(max-width: 700px)").matches ? "TB" : "LR", nodesep: 22, ranksep: 46, marginx: 6, marginy: 6 });
    layout.setDefaultEdgeLabel(() => ({}));
    for (const step of shape.steps) layout.setNode(step.id, { width: WIDTH, height: HEIGHT });
    for (const edge of shape.edges) layout.setEdge(edge.from, edge.to);
    dagre.layout(layout);
    const { width, height } = layout.graph();
    const smallest = 0.75 * width;
    this.root = svg(
      "svg",
      { class: "graph", viewBox: `0 0 ${width} ${height}`, width, role: "group", "aria-label": `The steps of ${shape.flow}` },
      svg("defs", null, svg("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" }, svg("path", { d: "M0 0 8 4 0 8z" }))),
      ...layout.edges().map((edge) => svg("path", { class: "edge", d: curve(layout.edge(edge).points), "marker-end": "url(#arrow)" })),
      ...shape.steps.map((step) => this.node(step, layout.node(step.id), chosen)),
    );
    // It shrinks to fit, as long as it can be read; then it scrolls.
    this.root.style.minWidth = `${smallest}px`;
  }

  node(step, { x, y }, chosen) {
    const parts = {
      figures: svg("text", { class: "figures", x: 12, y: 38 }),
      extra: svg("text", { class: "extra", x: 12, y: 53 }),
      load: svg("rect", { class: "load", x: 0, y: HEIGHT - 4, height: 4, width: 0 }),
    };
    const choose = () => chosen(step.id);
    parts.root = svg(
      "g",
      {
        class: `step ${["front", "sink", "late"].includes(step.kind) ? step.kind : "inner"}`,
        transform: `translate(${x - WIDTH / 2} ${y - HEIGHT / 2})`,
        tabindex: 0,
        role: "button",
        "data-step": step.id,
        onclick: choose,
        onkeydown: (event) => {
          if (event.key === "Enter" || event.key === " ") {
            event.preventDefault();
            choose();
          }
        },
      },
      svg("rect", { class: "box", width: WIDTH, height: HEIGHT, rx: 5 }),
      svg("text", { class: "name", x: 12, y: 20 }, cut(step.name, 19)),
      svg("text", { class: "kind", x: WIDTH - 10, y: 20, "text-anchor": "end" }, step.name.length + step.kind.length > 21 ? "" : step.kind),
      parts.figures,
      parts.extra,
      parts.load,
    );
    this.steps.set(step.id, { ...parts, step });
    return parts.root;
  }

  draw(store, chosen) {
    const workers = store.overview.workers.length || 1;
    for (const [id, { root, figures, extra, load, step }] of this.steps) {
      const known = store.overview.steps[id];
      if (!known) continue;
      const through = store.rate((look) => (step.kind === "front" ? look.steps[id]?.out : look.steps[id]?.in));
      const busy = store.rate((look) => look.steps[id]?.busySeconds);
      const share = busy == null ? 0 : busy / workers;
      say(figures, through == null ? `${short(known.in)} items` : `${rate(through)} · ${percent(share)} busy`);
      say(extra, details(known, step, store.overview.sinks));
      load.setAttribute("width", Math.min(WIDTH, WIDTH * share));
      root.dataset.load = share > 0.5 ? "high" : share > 0.15 ? "some" : "low";
      root.classList.toggle("chosen", id === chosen);
      root.setAttribute("aria-pressed", String(id === chosen));
      root.setAttribute("aria-label", `${step.kind} ${step.name}: ${figures.textContent}, ${extra.textContent}`);
    }
  }
}

function details(known, step, sinks) {
  const words = [];
  if (known.keys) words.push(`${short(known.keys)} keys`);
  if (known.replays) words.push(`${short(known.replays)} replays`);
  if (known.held) words.push(`${short(known.held)} wait`);
  const held = step.kind === "sink" ? sinks.filter((sink) => sink.sink === step.name).reduce((sum, sink) => sum + sink.held, 0) : 0;
  if (held) words.push(`${short(held)} at its barrier`);
  return words.join(", ");
}

const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

/** A smooth line through the points of an edge. */
function curve(points) {
  const [first, ...rest] = points;
  let path = `M${first.x} ${first.y}`;
  rest.forEach((point, place) => {
    const next = rest[place + 1];
    if (!next) path += ` L${point.x} ${point.y}`;
    else path += ` Q${point.x} ${point.y} ${(point.x + next.x) / 2} ${(point.y + next.y) / 2}`;
  });
  return path;
}
