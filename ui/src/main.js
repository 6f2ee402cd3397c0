// The page: one stream of events from the driver, four questions, one query at a time.
import "uplot/dist/uPlot.min.css";
import "./page.css";
import { el, say } from "./dom.js";
import { duration } from "./format.js";
import { Happened } from "./happened.js";
import { Inside } from "./inside.js";
import { Slow } from "./slow.js";
import { Store } from "./store.js";
import { Well } from "./well.js";

const VIEWS = [
  ["well", "Is it well?", Well],
  ["slow", "Where is it slow?", Slow],
  ["inside", "What is in it?", Inside],
  ["happened", "What happened?", Happened],
];
/** The driver is silent for so long before the page says so. It speaks every second. */
const SILENCE_MS = 4_000;
const AGAIN_MS = 2_000;

const store = new Store();
const place = Object.fromEntries(["view", "queries", "name", "state", "trouble"].map((id) => [id, document.getElementById(id)]));
let view = null;
let shown = "";
let source = null;
let heardAt = Date.now();
let trouble = "";

/** The address after # is view/query. */
function wanted() {
  const [name, query] = location.hash.slice(1).split("/");
  return { name: VIEWS.some(([known]) => known === name) ? name : "well", query: decodeURIComponent(query ?? "") };
}

function go(name, query) {
  location.hash = `${name}/${encodeURIComponent(query ?? "")}`;
}

function connect() {
  source?.close();
  source = new EventSource(`/api/stream?query=${encodeURIComponent(wanted().query)}`);
  source.onmessage = (event) => {
    heardAt = Date.now();
    trouble = "";
    store.take(JSON.parse(event.data));
    draw();
  };
  source.onerror = () => {
    if (source.readyState === EventSource.CLOSED) setTimeout(reconnect, AGAIN_MS);
  };
}

/** The stream was refused. Find out whether by a driver that does not know this session. */
async function reconnect() {
  try {
    const answer = await fetch("/");
    trouble = answer.status === 401 ? "This session is over: another driver answers here. Get a new address from your program: print(query.ui)." : "";
  } catch {
    trouble = "";
  }
  connect();
}

function draw() {
  const silent = Date.now() - heardAt;
  const said = trouble || (silent > SILENCE_MS ? `The driver does not answer, since ${duration(silent)}. It has ended, or cannot be reached. These are the last figures; the page tries again by itself.` : "");
  place.trouble.hidden = !said;
  say(place.trouble, said);
  document.body.classList.toggle("stale", Boolean(said));
  drawQueries();
  if (!store.overview) return;
  const { name } = wanted();
  if (name !== shown) open(name);
  view.draw(store);
}

function drawQueries() {
  const { overview, queries } = store;
  const text = queries.map((query) => `${query.id} ${label(query)}`).join();
  if (place.queries.dataset.text !== text) {
    place.queries.dataset.text = text;
    place.queries.replaceChildren(...queries.map((query) => el("option", { value: query.id }, label(query))));
  }
  place.queries.hidden = queries.length < 2;
  place.name.hidden = queries.length > 1;
  if (!overview) return;
  if (place.queries.value !== store.query) place.queries.value = store.query;
  say(place.name, overview.name ?? store.shape?.flow ?? "");
  const stale = document.body.classList.contains("stale");
  const state = stale ? "No answer" : overview.stored ? "Stored" : overview.error ? "Failed" : overview.state;
  say(place.state, state);
  place.state.dataset.kind = stale || overview.error ? "bad" : overview.active && overview.state === "Running" ? "good" : "quiet";
  document.title = `${overview.name ?? store.shape?.flow ?? "Emberflow"}: ${state}`;
}

const label = (query) => `${query.name ?? query.id.slice(0, 8)} (${query.stored ? "stored" : query.error ? "failed" : query.active ? "active" : "over"})`;

function open(name) {
  view?.close();
  const [, , View] = VIEWS.find(([known]) => known === name);
  view = new View();
  shown = name;
  for (const tab of tabs) {
    const chosen = tab.dataset.view === name;
    tab.setAttribute("aria-selected", String(chosen));
    tab.tabIndex = chosen ? 0 : -1;
  }
  place.view.setAttribute("aria-labelledby", `tab-${name}`);
  place.view.replaceChildren(view.root);
}

const tabs = VIEWS.map(([name, title]) => el("button", { type: "button", role: "tab", id: `tab-${name}`, "data-view": name, "aria-controls": "view", "aria-selected": "false", onclick: () => go(name, wanted().query) }, title));
const list = document.querySelector(".tabs");
list.append(...tabs);
list.addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  const next = tabs[(tabs.indexOf(document.activeElement) + step + tabs.length) % tabs.length];
  next.focus();
  next.click();
});
place.view.setAttribute("role", "tabpanel");
place.queries.addEventListener("change", () => go(wanted().name, place.queries.value));

let query = wanted().query;
window.addEventListener("hashchange", () => {
  if (wanted().query !== query) {
    query = wanted().query;
    store.clear();
    connect();
  }
  draw();
});
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  view?.recolour();
  draw();
});
connect();
setInterval(draw, 1_000);
