// The ledger: requests and bytes as the browser has counted them.

import { $, counted, el } from "./dom.js";

const LOCAL = /^(blob|data|about):/;

export function size(bytes) {
  if (bytes < 1000) return counted(bytes, "byte");
  return bytes < 100_000 ? `${(bytes / 1000).toFixed(0)} kB` : `${(bytes / 1e6).toFixed(bytes < 9.95e6 ? 1 : 0)} MB`;
}

export class Ledger {
  /** `own`: the names of the files of this page; a request for anything else is unexpected. */
  constructor(own) {
    this.own = new Set(own.map((name) => new URL(name, document.baseURI).href));
    this.shutAt = Infinity;
    this.received = 0;
    this.loaded = 0;
    this.files = new Set();
    this.unexpected = [];
    this.blocked = [];
    this.facts = new Map();
    const [page] = performance.getEntriesByType("navigation");
    if (page) this.#arrived(page);
    new PerformanceObserver((list) => {
      list.getEntries().forEach((entry) => this.#count(entry));
      this.show();
    }).observe({ type: "resource", buffered: true });
    addEventListener("securitypolicyviolation", (event) => {
      this.blocked.push(event.blockedURI);
      this.show();
    });
    $("ledger").hidden = false;
  }

  /** No request is expected after this moment. */
  shut() {
    this.shutAt = performance.now();
    this.show();
  }

  /** A sentence for the details, under a name so that it can change. */
  say(name, text, where = "here-facts") {
    const fact = this.facts.get(name) ?? el("li");
    fact.textContent = text;
    if (!fact.isConnected) $(where).append(fact);
    this.facts.set(name, fact);
  }

  /** A file that is requested twice counts as loaded once; bytes from the network count each time. */
  #arrived(entry) {
    this.received += entry.transferSize;
    if (!this.files.has(entry.name)) this.loaded += entry.encodedBodySize;
  }

  #count(entry) {
    if (LOCAL.test(entry.name)) return;
    this.#arrived(entry);
    if (entry.startTime < this.shutAt && this.own.has(entry.name)) {
      this.files.add(entry.name);
      return;
    }
    this.unexpected.push(entry);
  }

  /** The unexpected requests that were not refused; browsers may list a refused one among the others.
   *  Of a refused frame the browser names only the origin. */
  #gone() {
    const blocked = [...this.blocked];
    return this.unexpected.filter(({ name, initiatorType }) => {
      const origin = initiatorType === "iframe" ? new URL(name).origin : name;
      const at = blocked.findIndex((uri) => uri === name || uri === origin);
      if (at >= 0) blocked.splice(at, 1);
      return at < 0;
    }).map(({ name }) => name);
  }

  show() {
    const gone = this.#gone();
    const requests = gone.length;
    const refused = this.blocked.length;
    const sent = gone.reduce((sum, name) => sum + new TextEncoder().encode(name).length, 0);
    const { received, loaded } = this;
    Object.assign($("ledger").dataset, { sent, received, requests, refused, loaded });
    $("ledger").classList.toggle("warn", requests > 0);
    $("ledger").querySelector("use").setAttribute("href", requests ? "#i-alert" : "#i-shield");
    $("sent").textContent = requests
      ? `Left this device: at least ${size(sent)}, in ${counted(requests, "request")}`
      : `Left this device: 0 bytes of ratings${refused ? ` (${refused} refused)` : ""}`;
    const rest = received ? ", the rest was here already" : ", all was here already";
    $("received").textContent = `Received: ${size(received)}${received < loaded / 20 ? rest : ""}`;
    const files = counted(this.files.size, "file");
    this.say("files", `To load this page, the browser asked for ${files}, as for any page. What you pick was in none.`,
      "out-facts");
    this.say("requests", requests
      ? `${counted(requests, "request")} that this page did not expect. What was in them is not known here; a browser `
        + "extension may have made them."
      : "No request since the page was loaded, as counted by the browser.", "out-facts");
    this.say("refused", refused ? `The browser refused ${counted(refused, "attempt")} to load or send something.`
      : "No attempt at one had to be refused.", "out-facts");
  }
}

/** Shows what the publisher says about the model. */
export function describe({ about, people, items, method, precision, fedtaste }) {
  const facts = [["titles", items.toLocaleString("en")], ["learnt from", counted(people, "person", "people")],
    ...about.measured, ["method", `${method}, ${precision} (fedtaste ${fedtaste})`]];
  $("model-facts").replaceChildren(...facts.flatMap(([name, text]) => [el("dt", {}, name), el("dd", {}, text)]));
  $("model-lines").replaceChildren(...[...about.lines, ...about.licence].map((line) => el("li", {}, line)));
}
