// The plots of the last ten minutes.
import uPlot from "uplot";
import { el } from "./dom.js";

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** A plot with its title. Series are {name, column, colour}; `format` writes a value. */
export class Plot {
  constructor({ title, series, format, hint }) {
    this.series = series;
    this.format = format;
    this.title = title;
    this.legend = series.map(({ name, colour: hue }) =>
      el("span", { class: "key" }, el("i", { class: `dot ${hue}` }), `${name} `, (this[name] = el("b", null, "–"))),
    );
    this.place = el("div", { class: "plot", role: "img", "aria-label": title });
    this.root = el("figure", null, el("figcaption", null, el("span", { class: "title" }, title), ...this.legend), this.place);
    if (hint) this.root.append(el("p", { class: "hint" }, hint));
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(this.place);
  }

  draw(store) {
    const data = [store.times, ...this.series.map(({ column, scale = 1 }) => store.column(column).map((value) => (value == null ? null : value * scale)))];
    this.series.forEach(({ name }, place) => {
      const latest = data[place + 1].at(-1);
      this[name].textContent = latest == null ? "–" : this.format(latest);
    });
    this.place.setAttribute("aria-label", `${this.title}: ${this.series.map(({ name }) => `${name} ${this[name].textContent}`).join(", ")}`);
    if (!this.place.clientWidth) return;
    if (this.chart) this.chart.setData(data);
    else this.make(data);
  }

  make(data) {
    const axis = { stroke: colour("quiet"), font: "11px system-ui, sans-serif", ticks: { show: false }, grid: { stroke: colour("line"), width: 1 } };
    this.chart = new uPlot(
      {
        width: this.place.clientWidth,
        height: 130,
        cursor: { y: false, points: { size: 6 } },
        legend: { show: false },
        scales: {
          x: { range: (_, first) => [Math.max(Date.now() / 1_000 - 600, Math.min(first ?? Infinity, Date.now() / 1_000 - 60)), Date.now() / 1_000] },
          y: { range: (_, low, high) => [0, Math.max(high * 1.1, 1e-3)] },
        },
        axes: [
          { ...axis, grid: { show: false }, size: 24, splits: (_, place, low, high) => marks(low, high), values: (_, at) => at.map((time) => ago(time)) },
          { ...axis, size: 62, space: 34, values: (_, at) => at.map(this.format) },
        ],
        series: [{}, ...this.series.map(({ name, colour: hue }) => ({ label: name, stroke: colour(hue), width: 1.5, spanGaps: false, points: { show: false } }))],
      },
      data,
      this.place,
    );
  }

  resize() {
    if (this.chart && this.place.clientWidth) this.chart.setSize({ width: this.place.clientWidth, height: 130 });
  }

  /** Colours may have changed: the next `draw` makes it anew. */
  forget() {
    this.chart?.destroy();
    this.chart = null;
  }

  close() {
    this.observer.disconnect();
    this.forget();
  }
}

/** Where the axis of time is marked: whole minutes ago, three or four of them; or half of one. */
function marks(low, high) {
  const step = [30, 60, 120, 180].find((seconds) => (high - low) / seconds <= 4) ?? 180;
  const found = [];
  for (let at = Date.now() / 1_000; at >= low; at -= step) found.unshift(at);
  return found;
}

function ago(time) {
  const seconds = Math.round(Date.now() / 1_000 - time);
  if (seconds < 5) return "now";
  return seconds < 60 ? `−${seconds} s` : `−${Math.round(seconds / 60)} min`;
}
