/* Start a run: what is typed is checked as the command line does, and a mistake is told beside its field. */

import { ask, complain, el, hello, say, sentence } from "./parts.js";

export async function form(main, signal) {
  const known = await hello();
  if (signal.aborted) return;
  const complaints = {};
  const field = (name, title, input, hint) => {
    input.id = `field-${name}`;
    complaints[name] = el("p", { class: "problem", id: `problem-${name}`, hidden: true });
    input.setAttribute("aria-describedby", `problem-${name} hint-${name}`);
    return el("div", { class: "field" }, el("label", { for: input.id }, title), input, el("p", { class: "soft", id: `hint-${name}` }, hint), complaints[name]);
  };
  const dataset = el("input", { type: "text", list: "datasets", value: known.graphs[0] ?? "cora", autocomplete: "off", spellcheck: "false" });
  const protocol = el("select", {}, el("option", { value: "" }, "what fits the data"), known.protocols.map((name) => el("option", { value: name }, name)));
  const clients = el("input", { type: "text", inputmode: "numeric", autocomplete: "off" });
  const seeds = el("input", { type: "text", value: "0", autocomplete: "off" });
  const overrides = el("textarea", { rows: 3, spellcheck: "false" });
  const boxes = known.methods.map((name) => el("input", { type: "checkbox", value: name, checked: name === "fedavg" }));
  complaints.methods = el("p", { class: "problem", id: "problem-methods", hidden: true });
  const methods = el(
    "fieldset",
    { class: "methods", id: "field-methods", "aria-describedby": "problem-methods" },
    el("legend", {}, "Methods"),
    el("div", { class: "boxes" }, boxes.map((box) => el("label", {}, box, el("span", {}, box.value)))),
    el("div", { class: "buttons" },
      el("button", { type: "button", onclick: () => boxes.forEach((box) => (box.checked = known.usual.includes(box.value))) }, "The usual ones"),
      el("button", { type: "button", onclick: () => boxes.forEach((box) => (box.checked = false)) }, "None")),
    complaints.methods,
  );
  const preview = el("p", { class: "preview", "aria-live": "polite" });
  const wish = () => ({
    dataset: dataset.value,
    methods: boxes.filter((box) => box.checked).map((box) => box.value),
    protocol: protocol.value,
    clients: clients.value,
    seeds: seeds.value,
    overrides: overrides.value.split("\n").map((line) => line.trim()).filter(Boolean),
  });

  function forget() {
    preview.replaceChildren();
    for (const [name, place] of Object.entries(complaints)) {
      place.hidden = true;
      document.getElementById(`field-${name}`).removeAttribute("aria-invalid");
    }
  }

  function blame(error) {
    const place = complaints[error.field];
    if (!place) return complain(error);
    place.textContent = sentence(error.message);
    place.hidden = false;
    const input = document.getElementById(`field-${error.field}`);
    input.setAttribute("aria-invalid", "true");
    (input.tagName === "FIELDSET" ? boxes[0] : input).focus();
  }

  async function send(address) {
    forget();
    say("");
    for (const button of made.querySelectorAll(".send button")) button.disabled = true;
    try {
      return await ask(address, wish());
    } catch (error) {
      blame(error);
      return null;
    } finally {
      for (const button of made.querySelectorAll(".send button")) button.disabled = false;
    }
  }

  async function check() {
    const told = await send("/api/check");
    if (told) preview.replaceChildren(`${sentence(told.said)} In a terminal: `, el("code", {}, told.command.map(quoted).join(" ")));
  }

  async function start() {
    const told = await send("/api/start");
    if (!told) return;
    location.hash = `#/run/${told.id}`;
  }

  const made = el(
    "form",
    { novalidate: true, onsubmit: (event) => { event.preventDefault(); start(); } },
    el("datalist", { id: "datasets" }, [...known.graphs, ...known.datasets].map((name) => el("option", { value: name }))),
    field("dataset", "Data", dataset, `One of ${[...known.graphs, ...known.datasets].slice(0, 6).join(", ")}, …, or a generated graph such as csbm:nodes=5000.`),
    methods,
    field("protocol", "Protocol", protocol, "How the graph is cut, split, trained and tested."),
    field("clients", "Clients", clients, "How many owners the graph is cut across. Empty: what the protocol says."),
    field("seeds", "Seeds", seeds, "One run for each, such as 0,1,2. Empty: the protocol's."),
    field("overrides", "Other values", overrides, "One KEY=VALUE in a line, as --set takes them: rounds=20, fedprox.mu=0.1."),
    preview,
    el("div", { class: "buttons send" }, el("button", { type: "button", onclick: check }, "Check"), el("button", { type: "submit", class: "main" }, "Start")),
  );
  document.title = "New run, Suture";
  main.append(el("h1", { tabindex: "-1" }, "New run"), el("p", { class: "soft" }, "It is started as a process of its own, below the folder that this page shows, and goes on without it."), made);
  say("");
}

const quoted = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);
