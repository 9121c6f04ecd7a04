// The map: a layer of dots that is drawn when the view changes, and a layer of marks above it.

import { KINDS } from "./catalogue.js";
import { $, el, listed } from "./dom.js";
import { Points, View } from "./points.js";

const REACH = 13;
const GLIDE = 450;
const SLOW = matchMedia("(prefers-reduced-motion: reduce)");

export class MapView {
  /** `pick(item)` is called when a dot is chosen; `state(item)` says how an item stands, "" where it is not picked. */
  constructor(catalogue, places, { pick, state, say, act }) {
    Object.assign(this, { catalogue, pick, state, say, act });
    this.points = new Points(places, catalogue.colours);
    this.view = new View(places);
    this.alone = null;
    this.pointed = null;
    this.you = this.goal = null;
    this.liked = new Map();
    this.recommended = [];
    this.fingers = new Map();
    this.#legend(catalogue.legend);
    this.#listen();
    new ResizeObserver(() => this.#resize()).observe($("marks"));
  }

  /** What is marked: the picks, the recommendations, and you. */
  mark(picks, recommended, you) {
    this.liked = picks;
    this.recommended = recommended;
    this.from = this.you;
    this.goal = you;
    this.since = performance.now();
    if (!this.from || !you || SLOW.matches) this.you = you;
    this.#near();
    this.#later();
  }

  /** Shows an item as if pointed at, or none (NaN). */
  point(item) {
    this.lit = Number.isNaN(item) ? null : item;
    this.#later();
  }

  recolour() {
    this.palette = null;
    this.#redraw();
  }

  #legend(names) {
    $("legend").hidden = !names.length;
    $("legend").append(...names.map((name, i) => {
      const colour = name === "other" && i === names.length - 1 ? KINDS : i;
      const swatch = el("i", { class: `g${colour}` });
      const button = el("button", { type: "button", aria: { pressed: "false" } }, swatch, name);
      button.addEventListener("click", () => {
        this.alone = this.alone === colour ? null : colour;
        for (const other of $("legend").children) {
          other.setAttribute("aria-pressed", String(other === button && this.alone !== null));
        }
        this.#redraw();
      });
      return button;
    }));
  }

  #listen() {
    const canvas = $("marks");
    $("zoom-in").addEventListener("click", () => this.#zoom(1.6));
    $("zoom-out").addEventListener("click", () => this.#zoom(1 / 1.6));
    $("zoom-all").addEventListener("click", () => this.#zoom(0));
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      this.#zoom(Math.exp(-event.deltaY / 300), event.offsetX, event.offsetY);
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => this.#down(event));
    canvas.addEventListener("pointermove", (event) => this.#drag(event));
    canvas.addEventListener("pointerup", (event) => this.#up(event));
    canvas.addEventListener("pointercancel", (event) => this.fingers.delete(event.pointerId));
    canvas.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && this.#aim(null));
    canvas.addEventListener("keydown", (event) => this.#key(event));
    canvas.addEventListener("focus", () => canvas.matches(":focus-visible") && this.#aimMiddle());
    canvas.addEventListener("blur", () => {
      this.crosshair = false;
      this.#aim(null);
    });
  }

  #down(event) {
    $("marks").setPointerCapture(event.pointerId);
    this.crosshair = false;
    this.fingers.set(event.pointerId, { x: event.offsetX, y: event.offsetY });
    if (this.fingers.size === 1) this.moved = 0;
  }

  #drag(event) {
    const finger = this.fingers.get(event.pointerId);
    if (!finger) return this.#aim(this.#under(event), event);
    const [dx, dy] = [event.offsetX - finger.x, event.offsetY - finger.y];
    const other = [...this.fingers].find(([id]) => id !== event.pointerId)?.[1];
    const spread = other && Math.hypot(finger.x - other.x, finger.y - other.y);
    Object.assign(finger, { x: event.offsetX, y: event.offsetY });
    this.moved += Math.hypot(dx, dy);
    if (this.moved < 5) return undefined;
    this.#aim(null);
    this.view.move(dx / this.fingers.size, dy / this.fingers.size);
    if (other) {
      const factor = Math.hypot(finger.x - other.x, finger.y - other.y) / Math.max(spread, 1);
      this.view.enlarge(factor, (finger.x + other.x) / 2, (finger.y + other.y) / 2);
    }
    return this.#redraw();
  }

  /** A click picks; the first tap only shows the title. */
  #up(event) {
    this.fingers.delete(event.pointerId);
    if (this.moved >= 5 || this.fingers.size) return;
    const before = this.pointed;
    const item = this.#under(event);
    this.#aim(item, event);
    if (item !== null && (event.pointerType === "mouse" || item === before)) this.#choose(item);
  }

  #under(event) {
    const reach = (event.pointerType === "touch" ? 2 : 1) * REACH;
    const [item] = this.points.nearest(...this.view.spot(event.offsetX, event.offsetY), 1, reach / this.view.scale);
    return item ?? null;
  }

  #choose(item) {
    if (this.state(item)) return;
    this.pick(item);
    this.#aim(this.pointed);
  }

  #key(event) {
    const step = this.view.width / 9;
    const moves = { ArrowLeft: [step, 0], ArrowRight: [-step, 0], ArrowUp: [0, step], ArrowDown: [0, -step] };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (moves[event.key]) this.view.move(...moves[event.key]);
    else if (event.key === "+" || event.key === "=") this.view.enlarge(1.6);
    else if (event.key === "-") this.view.enlarge(1 / 1.6);
    else if (event.key === "0") this.view.whole();
    else if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    if (event.key === "Enter" || event.key === " ") {
      if (this.pointed !== null) this.#choose(this.pointed);
      return;
    }
    this.#redraw();
    this.#aimMiddle();
  }

  #aimMiddle() {
    this.crosshair = true;
    const [item] = this.points.nearest(this.view.x, this.view.y);
    this.#aim(item);
    clearTimeout(this.speaking);
    this.speaking = setTimeout(() => {
      this.say([this.catalogue.full(item), this.catalogue.kinds(item), this.state(item)].filter(Boolean).join(", "));
    }, 250);
  }

  /** Points at an item: its name is shown beside it. */
  #aim(item, event) {
    this.pointed = item ?? null;
    const tip = $("tip");
    tip.hidden = this.pointed === null;
    $("marks").style.cursor = this.pointed === null ? "" : "pointer";
    if (this.pointed !== null) {
      const [x, y] = this.view.place(...this.points.at(item));
      const verb = event?.pointerType === "touch" ? "tap again" : this.crosshair ? "Enter" : "click";
      const note = this.state(item) || `${verb} to ${this.act}`;
      tip.replaceChildren(el("b", {}, this.catalogue.full(item)), el("span", {}, this.catalogue.kinds(item)),
        el("span", { class: "do" }, note));
      const left = Math.min(Math.max(x - tip.offsetWidth / 2, 4), this.view.width - tip.offsetWidth - 4);
      const above = y - tip.offsetHeight - 12;
      tip.style.transform = `translate(${Math.round(left)}px, ${Math.round(above < 4 ? y + 12 : above)}px)`;
    }
    this.#later();
  }

  #zoom(factor, x, y) {
    if (factor) this.view.enlarge(factor, x, y);
    else this.view.whole();
    this.#aim(null);
    this.#redraw();
  }

  #resize() {
    const { clientWidth: width, clientHeight: height } = $("marks");
    if (!width) return;
    this.ratio = Math.min(devicePixelRatio || 1, 3);
    Object.assign(this.view, { width, height });
    for (const id of ["dots", "marks"]) {
      Object.assign($(id), { width: Math.round(width * this.ratio), height: Math.round(height * this.ratio) });
    }
    this.#redraw();
  }

  #redraw() {
    this.stale = true;
    this.#later();
  }

  #later() {
    this.frame ??= requestAnimationFrame((now) => {
      this.frame = null;
      this.#draw(now);
    });
  }

  #draw(now) {
    if (!this.ratio) return;
    this.palette ??= palette();
    if (this.stale) {
      this.stale = false;
      const context = $("dots").getContext("2d");
      context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
      this.points.draw(context, this.view, this.palette.dots, this.alone);
    }
    this.#walk(now);
    this.#marks();
  }

  /** Moves the mark of the person to its new place in steps. */
  #walk(now) {
    if (!this.from || !this.goal || SLOW.matches) return;
    const part = Math.min(1, (now - this.since) / GLIDE);
    const eased = 1 - (1 - part) ** 3;
    const along = (axis) => this.from[axis] + (this.goal[axis] - this.from[axis]) * eased;
    this.you = { x: along("x"), y: along("y") };
    if (part < 1) this.#later();
  }

  #marks() {
    const { view, points, palette: colours } = this;
    const context = $("marks").getContext("2d");
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.clearRect(0, 0, view.width, view.height);
    const radius = points.radius(view);
    const ring = (item, r, colour, fill) => {
      const [x, y] = view.place(...points.at(item));
      circle(context, x, y, r, null, colours.card, 5);
      circle(context, x, y, r, fill, colour);
    };
    for (const item of this.recommended) ring(item, radius + 2.5, colours.rec, null);
    for (const [item, { value }] of this.liked) {
      ring(item, radius + 2.5, colours.liked, value === 0 ? null : colours.liked);
    }
    for (const item of [this.lit, this.pointed]) {
      if (item !== null && item !== undefined) ring(item, radius + 6, colours.ink, null);
    }
    if (this.you) this.#drawYou(context);
    if (this.crosshair) {
      const [x, y] = [view.width / 2, view.height / 2];
      context.strokeStyle = colours.ink;
      context.lineWidth = 1.5;
      context.beginPath();
      for (const [dx, dy] of [[1, 0], [-1, 0], [0, 1], [0, -1]]) {
        context.moveTo(x + 5 * dx, y + 5 * dy);
        context.lineTo(x + 12 * dx, y + 12 * dy);
      }
      context.stroke();
    }
  }

  #drawYou(context) {
    const { card, you, ink, font } = this.palette;
    const [x, y] = this.view.place(this.you.x, this.you.y);
    circle(context, x, y, 11, card, null);
    circle(context, x, y, 9, null, you, 3);
    circle(context, x, y, 4, you, null);
    context.font = `600 13px ${font}`;
    context.lineWidth = 4;
    context.lineJoin = "round";
    context.strokeStyle = card;
    context.fillStyle = ink;
    const beside = x > this.view.width - 50;
    context.textAlign = beside ? "right" : "left";
    context.strokeText("you", x + (beside ? -15 : 15), y + 4.5);
    context.fillText("you", x + (beside ? -15 : 15), y + 4.5);
  }

  #near() {
    if (!this.goal) {
      $("near").textContent = this.liked.size ? "You are not on it: there is nothing to go by, or nothing left."
        : "You are not on it yet: like something, and you will be.";
      return;
    }
    const items = this.points.nearest(this.goal.x, this.goal.y, 5, Infinity, (item) => !this.liked.has(item));
    $("near").textContent = `Near you: ${listed(items.map((item) => this.catalogue.full(item)))}.`;
  }
}

function circle(context, x, y, radius, fill, stroke, width = 2) {
  context.beginPath();
  context.arc(x, y, radius, 0, 2 * Math.PI);
  context.lineWidth = width;
  if (fill) {
    context.fillStyle = fill;
    context.fill();
  }
  if (stroke) {
    context.strokeStyle = stroke;
    context.stroke();
  }
}

/** The colours of the style sheet, as the browser resolves them now. */
function palette() {
  const probe = el("i", {});
  $("map").append(probe);
  const colour = (name) => {
    probe.className = name;
    return getComputedStyle(probe).color;
  };
  const dots = Array.from({ length: KINDS + 1 }, (_, i) => colour(`g${i}`));
  const [you, liked, rec] = ["mark you", "mark liked", "mark rec"].map(colour);
  probe.remove();
  const style = getComputedStyle($("map"));
  return { dots, you, liked, rec, card: style.backgroundColor, ink: style.color, font: style.fontFamily };
}
