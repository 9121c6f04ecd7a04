// The dots of the map: their places on the screen, the nearest dot to a point, and how they are drawn.

const CLOSEST = 24;
const MARGIN = 16;

/** The visible part of the map: its middle in map units, and the zoom. */
export class View {
  constructor(places) {
    this.width = this.height = 1;
    const ends = [[Infinity, -Infinity], [Infinity, -Infinity]];
    places.forEach((value, i) => {
      const end = ends[i % 2];
      end[0] = Math.min(end[0], value);
      end[1] = Math.max(end[1], value);
    });
    this.middle = ends.map(([low, high]) => (low + high) / 2);
    this.half = ends.map(([low, high]) => Math.max(1, (high - low) / 2));
    this.whole();
  }

  whole() {
    Object.assign(this, { x: this.middle[0], y: this.middle[1], zoom: 1 });
  }

  get scale() {
    const [across, up] = this.half;
    return Math.min((this.width / 2 - MARGIN) / across, (this.height / 2 - MARGIN) / up) * this.zoom;
  }

  /** From map units to pixels, upwards being up. */
  place(x, y) {
    return [this.width / 2 + (x - this.x) * this.scale, this.height / 2 - (y - this.y) * this.scale];
  }

  /** From pixels to map units. */
  spot(px, py) {
    return [this.x + (px - this.width / 2) / this.scale, this.y - (py - this.height / 2) / this.scale];
  }

  move(dx, dy) {
    this.x = this.#within(0, this.x - dx / this.scale);
    this.y = this.#within(1, this.y + dy / this.scale);
  }

  #within(axis, value) {
    return Math.min(this.middle[axis] + this.half[axis], Math.max(this.middle[axis] - this.half[axis], value));
  }

  /** Enlarges around a pixel, which stays where it is. */
  enlarge(factor, px = this.width / 2, py = this.height / 2) {
    const [x, y] = this.spot(px, py);
    this.zoom = Math.min(CLOSEST, Math.max(1, this.zoom * factor));
    if (this.zoom === 1) return this.whole();
    const [nx, ny] = this.spot(px, py);
    this.x += x - nx;
    this.y += y - ny;
    return this.move(0, 0);
  }
}

export class Points {
  /** `places`: x, y of every item; `colours`: which colour each has. */
  constructor(places, colours) {
    this.places = places;
    this.colours = colours;
    this.count = colours.length;
    this.small = Math.max(1.3, Math.min(2.8, 110 / Math.sqrt(this.count)));
  }

  at(item) {
    return [this.places[2 * item], this.places[2 * item + 1]];
  }

  radius(view) {
    return this.small * (1 + 0.35 * Math.log2(view.zoom));
  }

  /** The items nearest to a spot, at most `reach` map units away, among those that `fits` accepts. */
  nearest(x, y, n = 1, reach = Infinity, fits = () => true) {
    const found = [];
    for (let item = 0; item < this.count; item++) {
      const distance = Math.hypot(this.places[2 * item] - x, this.places[2 * item + 1] - y);
      if (distance > reach || (found.length === n && distance >= found[n - 1][0]) || !fits(item)) continue;
      found.push([distance, item]);
      found.sort((a, b) => a[0] - b[0]);
      if (found.length > n) found.pop();
    }
    return found.map(([, item]) => item);
  }

  /** Draws all dots, each colour in one path; where one colour is `alone`, the others are faint. */
  draw(context, view, palette, alone) {
    const radius = this.radius(view);
    const [left, top] = view.spot(-9, -9);
    const [right, bottom] = view.spot(view.width + 9, view.height + 9);
    context.clearRect(0, 0, view.width, view.height);
    const others = palette.length - 1;
    for (const colour of [others, ...Array(others).keys()]) {
      context.beginPath();
      for (let item = 0; item < this.count; item++) {
        const [mapX, mapY] = this.at(item);
        if (this.colours[item] !== colour || mapX < left || mapX > right || mapY > top || mapY < bottom) continue;
        const [x, y] = view.place(mapX, mapY);
        context.moveTo(x + radius, y);
        context.arc(x, y, radius, 0, 2 * Math.PI);
      }
      context.globalAlpha = alone === null ? 0.85 : alone === colour ? 1 : 0.13;
      context.fillStyle = palette[colour];
      context.fill();
    }
    context.globalAlpha = 1;
  }
}
