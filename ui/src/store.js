// What the page knows: it is told by the server's events, every second.

const KEPT_SECONDS = 600;
/** Rates are those of the last seconds, so that they neither jump nor lag. */
const RATE_LOOKS = 4;

export class Store {
  constructor() {
    this.queries = [];
    this.clear();
  }

  /** Forget the query that was shown: another one is to be. */
  clear() {
    this.query = null;
    this.overview = null;
    this.shape = null;
    this.names = [];
    this.rows = [];
    this.cuts = [];
    this.events = [];
    this.aside = [];
    this.states = [];
    this.looks = [];
  }

  take(message) {
    this.queries = message.queries;
    if (message.query !== this.query) this.clear();
    this.query = message.query ?? null;
    if (!message.overview) return;
    this.overview = message.overview;
    for (const name of ["shape", "names", "states", "aside"]) if (message[name]) this[name] = message[name];
    this.rows.push(...message.rows);
    const begin = Date.now() - 1_000 * KEPT_SECONDS;
    // A server that was restarted, or a connection that was lost, may tell rows again.
    const last = new Map(this.rows.map((row) => [row[0], row]));
    this.rows = [...last.values()].filter((row) => row[0] > begin || this.overview.stored);
    this.cuts = newest(this.cuts, message.cuts, (cut) => cut.number);
    this.events = newest(this.events, message.events, (event) => `${event.at} ${event.kind} ${event.text}`);
    this.looks.push(this.overview);
    if (this.looks.length > RATE_LOOKS) this.looks.shift();
  }

  /** One figure of the history: its times in seconds, and its values. */
  column(name) {
    const place = this.names.indexOf(name);
    return this.rows.map((row) => row[place]);
  }

  get times() {
    return this.rows.map((row) => row[0] / 1_000);
  }

  /** How fast a counter of the overview grows, in a second. `of` finds it in an overview. */
  rate(of) {
    if (this.looks.length < 2) return null;
    const [first, last] = [this.looks[0], this.looks.at(-1)];
    const [before, now] = [of(first), of(last)];
    if (before == null || now == null) return null;
    const seconds = (last.at - first.at) / 1_000;
    // After a recovery workers count from 0 again.
    return seconds > 0 ? (now >= before ? now - before : now) / seconds : null;
  }
}

function newest(known, more, identity) {
  const all = new Map(known.map((one) => [identity(one), one]));
  for (const one of more ?? []) all.set(identity(one), one);
  return [...all.values()].slice(-600);
}
