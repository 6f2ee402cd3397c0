// What is in it? Look a key up, scan a state, as of a time; and the records that were put aside.
import { el, table } from "./dom.js";
import { count, elementTime } from "./format.js";

const ROWS = 100;

export class Inside {
  constructor() {
    this.state = el("select", { id: "in-state" });
    this.key = el("input", { id: "in-key", type: "text", autocomplete: "off", spellcheck: "false", placeholder: "all keys" });
    this.low = el("input", { id: "in-low", type: "text", autocomplete: "off", spellcheck: "false", placeholder: "none" });
    this.high = el("input", { id: "in-high", type: "text", autocomplete: "off", spellcheck: "false", placeholder: "none" });
    this.asOf = el("input", { id: "in-as-of", type: "text", autocomplete: "off", placeholder: "now" });
    this.answer = el("div", { class: "answer", "aria-live": "polite" });
    this.sql = el("code", { id: "in-sql" });
    this.copied = el("span", { class: "quiet", role: "status" });
    this.aside = el("div");
    const field = (label, input) => el("div", { class: "field" }, el("label", { for: input.id }, label), input);
    this.form = el(
      "form",
      { class: "ask", onsubmit: (event) => this.ask(event) },
      field("State", this.state),
      field("Key", this.key),
      field("From key", this.low),
      field("Below key", this.high),
      field("As of time", this.asOf),
      el("button", { type: "submit" }, "Read"),
    );
    this.none = el("p", { class: "quiet" }, "This flow has no states that can be read.");
    this.sqlLine = el("p", { class: "sql" }, this.sql, el("button", { type: "button", class: "small", onclick: () => this.copy() }, "Copy SQL"), this.copied);
    this.state.addEventListener("change", () => this.writeSql());
    this.root = el(
      "div",
      null,
      el("section", null, el("h2", null, "States"), el("p", { class: "hint" }, "Every answer is one consistent cut through all keys and workers. A key is JSON, or else a text."), this.form, this.none, this.answer, this.sqlLine),
      el("section", null, el("h2", null, "Put aside"), el("p", { class: "hint" }, "The newest hundred records that were diverted because a step failed, or that came too late."), this.aside),
    );
  }

  draw(store) {
    this.store = store;
    if (this.states !== store.states) {
      this.states = store.states;
      this.state.replaceChildren(...store.states.map((name) => el("option", { value: name }, name)));
      this.form.hidden = this.sqlLine.hidden = !store.states.length;
      this.none.hidden = Boolean(store.states.length);
      this.writeSql();
    }
    if (this.shownAside !== store.aside) {
      this.shownAside = store.aside;
      this.aside.replaceChildren(
        table(
          "Put aside",
          ["Time", "Sink", "Problem", "Payload", "Step"],
          [...store.aside].reverse().map((one) => [elementTime(one.time), one.sink, one.problem, el("code", null, one.payload), one.step]),
          { empty: "Nothing was diverted or late." },
        ),
      );
    }
  }

  writeSql() {
    const quoted = (text) => `'${String(text).replaceAll("'", "''")}'`;
    const { overview } = this.store;
    const from = overview.stored ? `checkpoint ${quoted(overview.stored)}` : `query ${quoted(overview.name ?? "")}`;
    this.sql.textContent = `CREATE TEMPORARY VIEW states USING emberflow OPTIONS (${from}, state ${quoted(this.state.value)}); SELECT * FROM states`;
    this.sqlLine.hidden = !this.state.value || !(overview.stored || overview.name);
  }

  async copy() {
    try {
      await navigator.clipboard.writeText(this.sql.textContent);
      this.copied.textContent = "Copied.";
    } catch {
      getSelection().selectAllChildren(this.sql);
      this.copied.textContent = "Selected: copy it with the keyboard.";
    }
  }

  async ask(event) {
    event.preventDefault();
    const asked = new URLSearchParams();
    if (this.key.value) asked.append("key", this.key.value);
    else {
      asked.append("limit", String(ROWS));
      if (this.low.value) asked.append("low", this.low.value);
      if (this.high.value) asked.append("high", this.high.value);
    }
    if (this.asOf.value) asked.append("as_of", this.asOf.value);
    const path = `/api/queries/${encodeURIComponent(this.store.query)}/states/${encodeURIComponent(this.state.value)}?${asked}`;
    this.answer.setAttribute("aria-busy", "true");
    try {
      const response = await fetch(path);
      this.show(await response.json());
    } catch {
      this.show({ error: "the driver does not answer." });
    }
    this.answer.removeAttribute("aria-busy");
  }

  show(answer) {
    if (answer.error) {
      this.answer.replaceChildren(el("p", { class: "bad" }, answer.error));
      return;
    }
    const more = answer.more ? `, the first ${count(answer.rows.length)}; there are more` : "";
    this.answer.replaceChildren(
      el("p", { class: "quiet" }, `As of ${answer.asOf[0]}${more}`),
      table("Answer", ["Key", "Value"], answer.rows.map((row) => [el("code", null, JSON.stringify(row.key)), el("code", null, JSON.stringify(row.value))]), { empty: "no such keys" }),
    );
  }

  recolour() {}

  close() {}
}
