// Makes the offline copy, forbids all further requests, then starts the worker, which inherits the ban.

const OFFLINE_WAIT = 3000;
const CLOSED = "default-src 'none'; connect-src 'none'; img-src data:; worker-src blob:; base-uri 'none'; "
  + "form-action 'none'";

const policy = globalThis.trustedTypes?.createPolicy("fedtaste", {
  createScriptURL(url) {
    if (url.startsWith("blob:") || url === "sw.js") return url;
    throw new TypeError(`no script may come from ${url}`);
  },
}) ?? { createScriptURL: String };

/** Makes a copy for offline use; resolves to "" when it is there, otherwise to the reason why it is not. */
async function makeCopy() {
  if (!globalThis.isSecureContext) return "the page did not come over https";
  if (!navigator.serviceWorker) return "this browser, or this window, keeps no copies of pages";
  let coming;
  try {
    const copy = await navigator.serviceWorker.register(policy.createScriptURL("sw.js"));
    if (copy.active) return ""; // a newer version waits until no page of this one is open
    coming = copy.installing;
  } catch {
    return "the browser did not allow it";
  }
  if (!coming) return "";
  return new Promise((resolve) => {
    coming.addEventListener("statechange", () => {
      if (coming.state === "activated") resolve("");
      if (coming.state === "redundant") resolve("the copy could not be made");
    });
  });
}

/** Makes the copy and reports the result to `tell`; the page waits for it for OFFLINE_WAIT milliseconds at most. */
export async function keepOffline(tell) {
  tell("the copy is still being made");
  const done = makeCopy().then(tell);
  await Promise.race([done, new Promise((resolve) => setTimeout(resolve, OFFLINE_WAIT))]);
}

/** Adds a policy by which the browser refuses whatever this page, and the worker made after this, would load or send.
 *  WebRTC, for which not every browser has a policy, is removed.
 *  The icon of the tab is stored in the page, as browsers ask for it again. */
export function forbidRequests(icon) {
  for (const name of ["RTCPeerConnection", "webkitRTCPeerConnection"]) delete globalThis[name];
  document.querySelector("link[rel=icon]").href = `data:image/svg+xml,${encodeURIComponent(icon)}`;
  const meta = document.createElement("meta");
  meta.httpEquiv = "Content-Security-Policy";
  meta.content = CLOSED;
  document.head.append(meta);
}

/** Talks to the worker: one question at a time; of those that come meanwhile only the last is sent. */
export class Engine {
  /** `ready`, `ranked`, `similar` and `failed` are called with the worker's messages, `ranked` with the question too. */
  constructor(source, load, { ready, ranked, similar, failed }) {
    const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
    this.worker = new Worker(policy.createScriptURL(url));
    this.busy = true;
    this.waiting = null;
    this.similar = [];
    this.number = 0;
    this.oldest = 0;
    this.worker.onerror = (event) => failed({ reason: event.message || "the worker did not start" });
    this.worker.onmessage = ({ data }) => {
      this.busy = false;
      if (data.type === "ready") ready(data);
      else if (data.type === "failed") failed(data);
      else if (data.type === "similar") similar(data);
      else if (data.id >= this.oldest) ranked(data, this.asked);
      this.#next();
    };
    this.worker.postMessage({ type: "load", ...load });
  }

  /** Asks for a ranking. With `fresh`, answers to earlier questions are ignored. */
  ask(question, fresh) {
    this.number += 1;
    if (fresh) this.oldest = this.number;
    this.waiting = { type: "rank", id: this.number, ...question };
    this.#next();
  }

  /** Asks for the `n` items that are most similar to one; every such question is answered. */
  askSimilar(item, n) {
    this.similar.push({ type: "similar", item, n });
    this.#next();
  }

  #next() {
    if (this.busy || (!this.waiting && !this.similar.length)) return;
    this.busy = true;
    if (!this.waiting) return this.worker.postMessage(this.similar.shift());
    this.worker.postMessage(this.waiting);
    this.asked = this.waiting;
    this.waiting = null;
    return undefined;
  }
}
