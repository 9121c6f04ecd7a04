// Computes recommendations on the person's device: rebuilds the person's vector and ranks the catalogue.
// The same arithmetic, in double precision, as fedtaste/serving/rebuild.py; it is checked against the cases of
// vectors.json whenever the page loads.
// f_j is the row of item j (with a constant 1 appended where the model has one), o_j its offset:
//   score_j = f_j . u + o_j        u is the person, rebuilt from their list every time it changes
// A model with a trail table N adds the rows of the likes: sum over likes i of w_i N[i, j].
// A sequence model reads the likes in their order by a network, whose last state is u; its trail is added as a logarithm.
"use strict";

// Draws: splitmix64 in two 32-bit halves; `hi` and `lo` hold the last number -----------------------------------------

let hi = 0, lo = 0;

/** (hi, lo) *= (bh, bl) modulo 2^64; the upper half of lo * bl comes from 16-bit limbs. */
function times(bh, bl) {
  const a0 = lo & 0xffff, a1 = lo >>> 16, b0 = bl & 0xffff, b1 = bl >>> 16;
  const first = Math.imul(a1, b0) + (Math.imul(a0, b0) >>> 16) | 0;
  const second = Math.imul(a0, b1) + (first & 0xffff) | 0;
  const carried = Math.imul(a1, b1) + (first >>> 16) + (second >>> 16) | 0;
  hi = Math.imul(hi, bl) + Math.imul(lo, bh) + carried | 0;
  lo = Math.imul(lo, bl);
}

/** (hi, lo) += (bh, bl) */
function plus(bh, bl) {
  const low = (lo >>> 0) + (bl >>> 0);
  hi = hi + bh + (low > 0xffffffff ? 1 : 0) | 0;
  lo = low | 0;
}

/** x ^= x >> bits, for bits below 32 */
function fold(bits) {
  lo ^= (hi << (32 - bits)) | (lo >>> bits);
  hi ^= hi >>> bits;
}

/** A well-mixed 64-bit number from two, left in (hi, lo). */
function mix(ah, al, bh, bl) {
  hi = ah | 0, lo = al | 0;
  times(0x9e3779b9, 0x7f4a7c15), plus(bh, bl), plus(0x632be59b, 0xd9b4e019);
  fold(30), times(0xbf58476d, 0x1ce4e5b9);
  fold(27), times(0x94d049bb, 0x133111eb);
  fold(31);
}

/** A number in [0, n): the upper 53 bits of mix(key, counter) modulo n. */
function below(keyHi, keyLo, counter, n) {
  mix(keyHi, keyLo, 0, counter);
  return ((hi >>> 0) * 0x200000 + (lo >>> 11)) % n;
}

/** The key of one draw by person 0 in the stream SERVE (6), left in (hi, lo); the seed is digits. */
function keyOf(seed, number) {
  const wide = BigInt.asUintN(64, BigInt(seed));
  mix(Number(wide >> 32n), Number(wide & 0xffffffffn), 0, 6);
  mix(hi, lo, 0, number);
  mix(hi, lo, 0, 0);
}

/** {items, targets}: the likes; where the recipe samples, also `negatives` x as many items from outside the person's
 * list with target 0, all shuffled by draw `number`; every dislike last, with target 0. */
function examples({ m, recipe }, { likes, targets: said, dislikes, marks }, number) {
  const drawn = recipe.examples === "samples", full = likes.length + dislikes.length >= m;
  const end = likes.length * (drawn && !full ? 1 + recipe.negatives : 1);
  const items = new Int32Array(end + dislikes.length), targets = new Float64Array(end + dislikes.length);
  items.set(likes);
  items.set(dislikes, end);
  targets.set(drawn ? Float32Array.from(said) : said); // as devices draw them
  if (!drawn) return { items, targets };
  keyOf(recipe.seed, number);
  const keyHi = hi, keyLo = lo;
  let counter = 0;
  for (let at = likes.length; at < end; at++) {
    do items[at] = below(keyHi, keyLo, counter++, m); while (marks[items[at]] !== 0);
  }
  for (let at = end - 1; at > 0; at--) {
    const other = below(keyHi, keyLo, counter++, at + 1);
    [items[at], items[other]] = [items[other], items[at]];
    [targets[at], targets[other]] = [targets[other], targets[at]];
  }
  return { items, targets };
}

// Linear algebra: row-major, of a symmetric matrix only the lower triangle -------------------------------------------

function dot(a, ai, b, bi, size) {
  let sum = 0;
  for (let c = 0; c < size; c++) sum += a[ai + c] * b[bi + c];
  return sum;
}

/** A += weight f f' */
function addOuter(A, table, start, p, weight) {
  for (let r = 0; r < p; r++) {
    const scaled = weight * table[start + r];
    for (let c = 0, at = r * p; c <= r; c++) A[at + c] += scaled * table[start + c];
  }
}

/** A becomes L with A = L L'; false where A is not positive definite. */
function cholesky(A, p) {
  for (let r = 0; r < p; r++) {
    for (let c = 0; c < r; c++) A[r * p + c] = (A[r * p + c] - dot(A, r * p, A, c * p, c)) / A[c * p + c];
    const left = A[r * p + r] - dot(A, r * p, A, r * p, r);
    if (!(left > 0 && left < Infinity)) return false;
    A[r * p + r] = Math.sqrt(left);
  }
  return true;
}

/** x becomes (L L')^-1 x */
function solve(L, x, p) {
  for (let r = 0; r < p; r++) x[r] = (x[r] - dot(L, r * p, x, 0, r)) / L[r * p + r];
  for (let r = p - 1; r >= 0; r--) {
    x[r] /= L[r * p + r];
    for (let c = 0; c < r; c++) x[c] -= L[r * p + c] * x[r];
  }
  return x;
}

// The person: u, and of every like its `pull`; its share in score_j is pull_i f_i . (L L')^-1 f_j --------------------

/** A = alpha0 V'V + sum w f f' + lam (sum w + prior) I;  u = A^-1 sum w f (target - o);  pull = w (target - o) */
function ridge(model, person) {
  const { recipe, p, table, offset } = model;
  const { items, targets } = examples(model, person, recipe.first);
  const aged = person.timed && recipe.examples === "history", newest = person.likes.length - 1;
  const pull = new Float64Array(person.likes.length), u = new Float64Array(p), A = Float64Array.from(model.gram);
  let total = 0;
  items.forEach((item, e) => {
    const like = person.marks[item] - 1;
    const weight = aged && like >= 0 ? recipe.floor + (1 - recipe.floor) * recipe.recency ** (newest - like) : 1;
    const part = weight * (targets[e] - offset[item]);
    addOuter(A, table, item * p, p, weight);
    for (let c = 0; c < p; c++) u[c] += part * table[item * p + c];
    if (like >= 0) pull[like] = part;
    total += weight;
  });
  for (let c = 0; c < p; c++) A[c * p + c] += recipe.lam * (total + recipe.prior);
  return cholesky(A, p) ? { u: solve(A, u, p), pull, L: A } : null;
}

/** Descent from `start`: u -= s (sum g_e f_e + shrink u), g_e the slope of a batch's mean loss. Where the recipe
 * `moves`, rows and offsets step along, on copies that every round makes anew. pull_i = -sum s g_i, shrunk alike. */
function descend(model, person) {
  const { recipe, m, k, p, table, offset } = model;
  const u = Float64Array.from(recipe.start), slope = new Float64Array(p);
  const pull = new Float64Array(person.likes.length), slots = new Int32Array(m);
  for (let r = 0; r < recipe.rounds; r++) {
    const { items, targets } = examples(model, person, recipe.first + r), count = items.length;
    const rows = new Float64Array(count * p), levels = new Float64Array(count), g = new Float64Array(count);
    let used = 0, mean = 0, speed = recipe.round_decay ** r;
    for (const item of items) {
      if (slots[item]) continue;
      for (let c = 0; c < p; c++) rows[used * p + c] = table[item * p + c];
      levels[used] = offset[item];
      slots[item] = ++used;
    }
    const size = recipe.batch || count, batches = Math.ceil(count / size);
    for (let step = 0; step < recipe.passes * batches; step++) {
      const begin = (step % batches) * size, end = Math.min(begin + size, count);
      const s = recipe.lr * speed, keep = 1 - s * recipe.shrink;
      slope.fill(0);
      for (let e = begin; e < end; e++) {
        const slot = slots[items[e]] - 1;
        const score = dot(rows, slot * p, u, 0, p) + levels[slot] + mean;
        const miss = recipe.loss === "bce" ? 1 / (1 + Math.exp(-score)) - targets[e] : 2 * (score - targets[e]);
        g[e] = miss / (end - begin);
        for (let c = 0; c < p; c++) slope[c] += g[e] * rows[slot * p + c];
      }
      for (let i = 0; i < pull.length; i++) pull[i] *= keep;
      for (let e = begin; e < end; e++) {
        const slot = slots[items[e]] - 1, like = person.marks[items[e]] - 1, by = s * g[e];
        if (like >= 0) pull[like] -= by;
        if (recipe.moves) for (let c = 0; c < k; c++) rows[slot * p + c] -= by * u[c];
        if (recipe.moves && model.shifts) levels[slot] -= by, mean -= by;
      }
      for (let c = 0; c < p; c++) u[c] = keep * u[c] - s * slope[c];
      speed *= recipe.step_decay;
    }
    for (const item of items) slots[item] = 0;
  }
  return { u, pull, L: null };
}

// Sequence networks, as in fedtaste/serving/sequence_state.py: x [steps, d] row by row, oldest first ------------------

/** x W + bias for every row of x; W is [rows, columns]. Four rows of W at once take half the time. */
function product(x, W, rows, bias) {
  const steps = x.length / rows, columns = W.length / rows, out = new Float64Array(steps * columns);
  for (let t = 0; t < steps; t++) {
    const start = t * columns, from = t * rows;
    if (bias) out.set(bias, start);
    let r = 0;
    for (; r + 3 < rows; r += 4) {
      const x0 = x[from + r], x1 = x[from + r + 1], x2 = x[from + r + 2], x3 = x[from + r + 3];
      const w0 = r * columns, w1 = w0 + columns, w2 = w1 + columns, w3 = w2 + columns;
      for (let c = 0; c < columns; c++) {
        out[start + c] += x0 * W[w0 + c] + x1 * W[w1 + c] + x2 * W[w2 + c] + x3 * W[w3 + c];
      }
    }
    for (; r < rows; r++) for (let c = 0; c < columns; c++) out[start + c] += x[from + r] * W[r * columns + c];
  }
  return out;
}

/** The layer norm of every row of x. */
function norm(x, weight, bias) {
  const d = weight.length, out = new Float64Array(x.length);
  for (let start = 0; start < x.length; start += d) {
    let mean = 0, square = 0;
    for (let c = 0; c < d; c++) mean += x[start + c] / d;
    for (let c = 0; c < d; c++) square += (x[start + c] - mean) ** 2 / d;
    const size = Math.sqrt(square + 1e-5);
    for (let c = 0; c < d; c++) out[start + c] = (x[start + c] - mean) / size * weight[c] + bias[c];
  }
  return out;
}

/** Causal attention with relative positions: what every row of x from row `first` on takes from the rows before. */
function attend({ heads, length }, { qkv, o, rel }, x, d, first) {
  const steps = x.length / d, h = d / heads, wide = 3 * d, scale = 1 / Math.sqrt(h), parts = product(x, qkv, d);
  const mixed = new Float64Array((steps - first) * d), shares = new Float64Array(steps);
  for (let t = first; t < steps; t++) {
    for (let head = 0; head < heads; head++) {
      const q = t * wide + head * h, k = d + head * h, v = 2 * d + head * h, to = (t - first) * d + head * h;
      let most = -Infinity, total = 0;
      for (let s = 0; s <= t; s++) {
        shares[s] = dot(parts, q, parts, s * wide + k, h) * scale + rel[head * length + t - s];
        if (shares[s] > most) most = shares[s];
      }
      for (let s = 0; s <= t; s++) total += shares[s] = Math.exp(shares[s] - most);
      for (let s = 0; s <= t; s++) {
        const share = shares[s] / total, at = s * wide + v;
        for (let c = 0; c < h; c++) mixed[to + c] += share * parts[at + c];
      }
    }
  }
  return product(mixed, o, d);
}

const gelu = (x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3)));
const sigmoid = (x) => 1 / (1 + Math.exp(-x));

/** The last state of a GRU with 2 d units. */
function recur(gru, x, d) {
  const units = 2 * d, inputs = product(x, gru.input, d, gru.input_bias), state = new Float64Array(units);
  for (let start = 0; start < inputs.length; start += 3 * units) {
    const own = product(state, gru.state, units, gru.state_bias);
    for (let c = 0; c < units; c++) {
      const reset = sigmoid(inputs[start + c] + own[c]);
      const keep = sigmoid(inputs[start + units + c] + own[units + c]);
      const fresh = Math.tanh(inputs[start + 2 * units + c] + reset * own[2 * units + c]);
      state[c] = keep * state[c] + (1 - keep) * fresh;
    }
  }
  return product(state, gru.output, units, gru.output_bias);
}

/** The state after these items. Of the last block, only the last row is needed. */
function lastState({ k: d, table, network, recipe: { sequence } }, items) {
  let x = new Float64Array(items.length * d);
  items.forEach((item, t) => {
    for (let c = 0; c < d; c++) x[t * d + c] = sequence.embedded * table[item * d + c];
  });
  if (sequence.network === "gru") return norm(recur(network.gru, x, d), network.norm.weight, network.norm.bias);
  for (let layer = 0; layer < sequence.layers; layer++) {
    const block = network[`block${layer}`], first = layer === sequence.layers - 1 ? items.length - 1 : 0;
    const taken = attend(sequence, block, norm(x, block.norm1.weight, block.norm1.bias), d, first);
    x = x.subarray(first * d).map((value, at) => value + taken[at]);
    const hidden = product(norm(x, block.norm2.weight, block.norm2.bias), block.f1, d, block.f1_bias).map(gelu);
    const fed = product(hidden, block.f2, 2 * d, block.f2_bias);
    x = x.map((value, at) => value + fed[at]);
  }
  return norm(x, network.norm.weight, network.norm.bias);
}

/** The person of a sequence model. The share of a like is that in the trail; without a trail, the cosine to the item. */
function readSequence(model, { likes }) {
  const { k, table, recipe: { sequence, trail } } = model;
  const u = lastState(model, likes.subarray(Math.max(0, likes.length - sequence.length)));
  if (trail) return { u, pull: new Float64Array(likes.length), L: null, weights: weightsByAge(trail, likes), level: 0 };
  const lengthOf = (item) => Math.sqrt(dot(table, item * k, table, item * k, k)) || 1;
  return { u, pull: Float64Array.from(likes, (item) => 1 / lengthOf(item)), L: null };
}

// The trail: sums of rows of a table ----------------------------------------------------------------------------------

/** The weights of likes by their age, oldest first. */
function weightsByAge({ mix, fast, slow, reach }, likes) {
  const weigh = (age) => (reach && age >= reach ? 0 : mix * fast ** age + (1 - mix) * slow ** age);
  return Float64Array.from(likes, (_, i) => weigh(likes.length - 1 - i));
}

/** Sums of the likes' rows of the trail table, for the whole catalogue. */
function trailScores({ m, trail: { width, at, values } }, likes, weights) {
  const sums = new Float64Array(m);
  likes.forEach((item, i) => {
    for (let c = item * width; c < (item + 1) * width; c++) sums[at[c]] += weights[i] * values[c];
  });
  return sums;
}

/** [mean, population standard deviation, or 1 where it is 0] */
function meanAndSpread(values) {
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  return [mean, Math.sqrt(values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / values.length) || 1];
}

/** {weights, level} beside the vector: of the likes' rows in the trail table. A list without order of time has weights
 * of 1. Where there is a vector, both parts become z-scores: each is divided by its spread, and `level` makes up for
 * both means. Dislikes do not count here. */
function withTrail(model, person, rebuilt) {
  const { solver, trail } = model.recipe;
  const weights = person.timed ? weightsByAge(trail, person.likes) : new Float64Array(person.likes.length).fill(1);
  if (solver === "none") return { ...rebuilt, weights, level: 0 };
  const [mean, spread] = meanAndSpread(scoresOf(model, person, rebuilt));
  const [trailMean, trailSpread] = meanAndSpread(trailScores(model, person.likes, weights));
  return {
    ...rebuilt, u: rebuilt.u.map((x) => x / spread), pull: rebuilt.pull.map((x) => x / spread),
    weights: weights.map((x) => x / trailSpread), level: mean / spread + trailMean / trailSpread,
  };
}

/** The person's vector and the pulls of their likes; null where there is nothing to go by. */
function rebuild(model, person) {
  const { p, recipe } = model, count = person.likes.length;
  if (count === 0) return null;
  let rebuilt = { u: new Float64Array(p), pull: new Float64Array(count), L: null };
  if (recipe.sequence) rebuilt = readSequence(model, person);
  else if (recipe.solver !== "none") rebuilt = recipe.solver === "ridge" ? ridge(model, person) : descend(model, person);
  if (!rebuilt?.u.every(Number.isFinite)) return null;
  return recipe.trail && !recipe.sequence ? withTrail(model, person, rebuilt) : rebuilt;
}

// The catalogue for this person --------------------------------------------------------------------------------------

/** Popularity ranks: 1 for the most popular item; equally popular items share a rank. */
function ranksOf(popularity) {
  const falling = Float64Array.from(popularity).sort().reverse(), first = new Map();
  falling.forEach((value, at) => first.has(value) || first.set(value, at + 1));
  return popularity.map((value) => first.get(value));
}

/** The person's scores of the whole catalogue. */
function scoresOf(model, person, { u, weights, level }) {
  const { p, table, offset } = model, scores = offset.map((o, j) => dot(table, j * p, u, 0, p) + o);
  if (!weights) return scores;
  const added = trailScores(model, person.likes, weights), { sequence } = model.recipe;
  if (sequence) return scores.map((score, j) => score + sequence.alpha * Math.log(added[j] + sequence.eps));
  return scores.map((score, j) => score + added[j] - level);
}

/** final_j = base + (score_j - base) rank_j^(0.5 adventurous): base the median, rank_j the popularity rank. */
function finals({ ranks }, scores, adventurous) {
  if (adventurous === 0) return scores;
  const sorted = scores.slice().sort(), half = sorted.length >> 1, base = (sorted[half] + sorted.at(-half - 1)) / 2;
  return scores.map((score, j) => base + (score - base) * ranks[j] ** (0.5 * adventurous));
}

/** The `count` highest, ties by number, each title once, none of `passed`, none at -Infinity; sorts only items that can
 * be among them. */
function best({ m, titleOf, distinct }, values, passed, count) {
  const least = Float64Array.from(values).sort()[Math.max(distinct - passed.size - count, 0)];
  const near = [], seen = new Set(passed);
  for (let j = 0; j < m; j++) if (values[j] >= least) near.push(j);
  near.sort((a, b) => values[b] - values[a] || a - b);
  return near.filter((j) => values[j] > -Infinity && !seen.has(titleOf[j]) && seen.add(titleOf[j])).slice(0, count);
}

/** The values with -Infinity for items of none of these genres (numbers); all of them where no genre is wanted. */
function filtered({ genres }, values, wanted) {
  if (!wanted?.length) return values;
  return values.map((value, j) => (genres[j].some((genre) => wanted.includes(genre)) ? value : -Infinity));
}

/** The `n` items with the largest cosine to the vector of `item`, to nine decimals; neither its title nor items with a
 * zero vector, of which nothing is known. */
function similar({ m, k, p, table, titleOf, distinct }, item, n) {
  const lengths = Float64Array.from({ length: m }, (_, j) => Math.sqrt(dot(table, j * p, table, j * p, k)));
  const cosines = lengths.map((length, j) => (length && lengths[item]
    ? Math.round(1e9 * dot(table, j * p, table, item * p, k) / length / lengths[item]) / 1e9 : -Infinity));
  const items = best({ m, titleOf, distinct }, cosines, new Set([titleOf[item]]), n);
  return items.map((j) => ({ item: j, score: cosines[j] }));
}

/** N[item, j] of the trail table; 0 where it was not kept. */
function entry({ width, at, values }, item, j) {
  const column = at.subarray(item * width, (item + 1) * width).indexOf(j);
  return column < 0 ? 0 : values[item * width + column];
}

/** Up to two likes with the largest positive share in the score of item j, largest first; of ratings only good ones. */
function because({ p, table, middle, trail }, { likes, targets }, { pull, L, weights }, j) {
  const y = table.slice(j * p, j * p + p);
  if (L) solve(L, y, p);
  let first = -1, second = -1, most = 0, next = 0;
  likes.forEach((item, i) => {
    let share = pull[i] * dot(table, item * p, y, 0, p);
    if (weights) share += weights[i] * entry(trail, item, j);
    if (!(targets[i] > middle)) share = 0;
    if (share > most) [second, next, first, most] = [first, most, item, share];
    else if (share > next) [second, next] = [item, share];
  });
  return [first, second].filter((item) => item >= 0);
}

/** Where a person stands on the map: at the item around which the smallest circle holds more than half of these. */
function stand({ map }, items) {
  const radius = (from) => items.map((to) => (map[2 * from] - map[2 * to]) ** 2 + (map[2 * from + 1]
    - map[2 * to + 1]) ** 2).sort((a, b) => a - b)[items.length >> 1];
  let at = null, least = Infinity;
  for (const item of items) if (radius(item) < least) [at, least] = [item, radius(item)];
  return at === null ? null : { x: map[2 * at], y: map[2 * at + 1] };
}

/** The answer to a `rank` message, but for its id. */
function rank(model, message) {
  const begun = performance.now(), person = personOf(model, message), { n, adventurous } = message;
  const passed = new Set([...person.likes, ...person.dislikes].map((item) => model.titleOf[item]));
  const rebuilt = rebuild(model, person), popular = rebuilt === null;
  const all = popular ? model.popularity.map((byte) => byte / 255)
    : finals(model, scoresOf(model, person, rebuilt), adventurous);
  const values = filtered(model, all, message.genres);
  const top = best(model, values, passed, Math.max(n, 10));
  const items = top.slice(0, n).map((item) => ({
    item, score: values[item], because: popular ? [] : because(model, person, rebuilt, item),
  }));
  const you = popular ? null : stand(model, top.slice(0, 10));
  const left = values === all ? model.distinct - passed.size
    : new Set(model.titleOf.filter((title, j) => values[j] > -Infinity && !passed.has(title))).size;
  return { popular, items, you, left, ms: performance.now() - begun };
}

// Messages: inputs are checked, and mistakes are answered with a sentence ---------------------------------------------

class Refusal extends Error {}
const refuse = (reason) => { throw new Refusal(reason); };

function countOf(n) {
  if (!Number.isInteger(n) || n < 1) refuse("How many to list must be a whole number from 1 on.");
  return n;
}

function itemOf({ m }, item) {
  if (!Number.isInteger(item) || item < 0 || item >= m) refuse(`There is no such item: the catalogue has ${m} items.`);
  return item;
}

/** The person of a `rank` message: `marks` holds i + 1 for like i, and -1 for a dislike. */
function personOf({ m, low, high, ratings }, { likes, dislikes, timed, adventurous, n, genres }) {
  if (!Array.isArray(likes) || !Array.isArray(dislikes)) refuse("A list of likes and one of dislikes were expected.");
  if (ratings && dislikes.length) refuse("This model knows ratings, not dislikes. Give a low rating instead.");
  countOf(n);
  if (genres !== undefined && !Array.isArray(genres)) refuse("A list of genres was expected.");
  if (!Number.isFinite(adventurous) || Math.abs(adventurous) > 1) refuse("Adventurous is a number from -1 to 1.");
  const marks = new Int32Array(m);
  const mark = (item, as) => {
    if (marks[itemOf({ m }, item)] !== 0) refuse("An item is on the list twice. Keep one of the two.");
    marks[item] = as;
  };
  likes.forEach((like, i) => {
    mark(like?.item, i + 1);
    const fine = Number.isFinite(like.value) && like.value >= low && like.value <= high;
    if (!fine) refuse(`A ${ratings ? "rating" : "like"} has a value that is no number from ${low} to ${high}.`);
  });
  dislikes.forEach((item) => mark(item, -1));
  const targets = Float64Array.from(likes, ({ value }) => (ratings ? value : 1));
  return { likes: Int32Array.from(likes, ({ item }) => item), targets, dislikes, marks, timed: timed === true };
}

/** The trail table of a bundle: of every row the columns and values of its largest entries. */
function trailOf({ items: m, trail: width, precision, recipe }, array) {
  if (!recipe.trail) return null;
  const at = array("columns of the trail table", "trail.u16", Uint16Array, m * width);
  if (at.some((j) => j >= m)) refuse("The trail table names an item that is not in the catalogue.");
  if (precision !== "int8") return { width, at, values: array("trail table", "trail.f32", Float32Array, m * width) };
  const raw = array("trail table", "trail.i8", Int8Array, m * width);
  const scale = array("scales of the trail table", "trail-scale.f32", Float32Array, m);
  return { width, at, values: Float32Array.from(raw, (value, c) => value * scale[Math.floor(c / width)]) };
}

/** The parameters of a bundle's sequence network by name, in groups: network.block0.norm1.weight. */
function networkOf({ k: d, precision, recipe: { sequence } }, array) {
  if (!sequence) return null;
  const { heads, length } = sequence, small = precision === "int8", network = {};
  const norms = (name) => [[`${name}.weight`, 0, d], [`${name}.bias`, 0, d]]; // name, rows (0: a vector), columns
  const gru = [["gru.input", d, 6 * d], ["gru.input_bias", 0, 6 * d], ["gru.state", 2 * d, 6 * d],
    ["gru.state_bias", 0, 6 * d], ["gru.output", 2 * d, d], ["gru.output_bias", 0, d]];
  const block = (at) => [...norms("norm1"), ["qkv", d, 3 * d], ["o", d, d], ["rel", 0, heads * length],
    ...norms("norm2"), ["f1", d, 2 * d], ["f1_bias", 0, 2 * d], ["f2", 2 * d, d], ["f2_bias", 0, d],
  ].map(([name, ...shape]) => [`block${at}.${name}`, ...shape]);
  const shapes = [...norms("norm"),
    ...(sequence.network === "gru" ? gru : Array.from({ length: sequence.layers }, (_, at) => block(at)).flat())];
  const sum = (count) => shapes.reduce((total, [, rows, columns]) => total + count(rows, columns), 0);
  const size = sum((rows, columns) => rows * columns), what = "sequence network";
  const raw = array(what, small ? "network.i8" : "network.f32", small ? Int8Array : Float32Array, size);
  const scale = small ? array(`scales of the ${what}`, "network-scale.f32", Float32Array, sum((rows) => rows)) : null;
  const vectors = array(`vectors of the ${what}`, "network-vectors.f32", Float32Array,
    sum((rows, columns) => (rows ? 0 : columns)));
  let at = 0, row = 0, vector = 0;
  for (const [name, rows, columns] of shapes) {
    const value = new Float32Array((rows || 1) * columns), names = name.split("."), last = names.pop();
    for (let c = 0; c < value.length; c++) {
      if (!rows) value[c] = vectors[vector++];
      else value[c] = raw[at++] * (small ? scale[row + Math.floor(c / columns)] : 1);
    }
    row += rows;
    names.reduce((group, part) => (group[part] ??= {}), network)[last] = value;
  }
  return network;
}

/** The model of a `load` message. */
function modelOf({ manifest, files }) {
  if (manifest?.format !== "fedtaste-bundle-1") refuse("This bundle is of another version. Export it again.");
  const { items: m, k, recipe, scale: [low, high] } = manifest, p = k + (manifest.ones ? 1 : 0);
  const array = (what, name, Type, size) => {
    const bytes = files[name]?.byteLength ?? 0, expected = size * Type.BYTES_PER_ELEMENT;
    if (bytes !== expected) refuse(`The ${what} (${name}) holds ${bytes} bytes, expected ${expected}.`);
    return new Type(files[name]);
  };
  const json = (name) => JSON.parse(new TextDecoder().decode(files[name] ?? refuse(`The file ${name} is missing.`)));
  const small = manifest.precision === "int8", shifts = manifest.tables.offset;
  const raw = array("item table", small ? "item.i8" : "item.f32", small ? Int8Array : Float32Array, m * k);
  const scale = small ? array("table of scales", "scale.f32", Float32Array, m) : new Float32Array(m).fill(1);
  const offset = Float64Array.from(shifts ? array("offset table", "offset.f32", Float32Array, m) : new Float32Array(m));
  const popularity = Float64Array.from(array("popularity table", "popularity.u8", Uint8Array, m));
  const map = array("map", "map.i16", Int16Array, 2 * m);
  const { titles, genres } = json("items.json"), { cases, similar: alike = [] } = json("vectors.json");
  if (titles.length !== m) refuse(`items.json holds ${titles.length} titles, expected ${m}. Export the bundle again.`);
  const known = ["ridge", "descent", "sequence", "none"].includes(recipe.solver);
  if (!known) refuse("This page cannot compute with this kind of model.");
  const table = new Float64Array(m * p).fill(1), gram = new Float64Array(p * p), numbers = new Map();
  for (let j = 0; j < m; j++) {
    for (let c = 0; c < k; c++) table[j * p + c] = Math.fround(raw[j * k + c] * scale[j]);
    if (recipe.alpha0) addOuter(gram, table, j * p, p, recipe.alpha0);
    if (!numbers.has(titles[j])) numbers.set(titles[j], numbers.size);
  }
  return {
    m, k, p, recipe, low, high, middle: (low + high) / 2, ratings: manifest.task === "ratings", shifts, cases, alike,
    table, gram, offset, popularity, ranks: ranksOf(popularity), map, genres, trail: trailOf(manifest, array),
    network: networkOf(manifest, array),
    titleOf: titles.map((title) => numbers.get(title)), distinct: numbers.size,
  };
}

/** Compares this arithmetic with Python's: {cases, worst}, the largest difference of a score. */
function check(model) {
  let worst = 0;
  for (const { likes, popular, items, scores, because: reasons, ...rest } of model.cases) {
    const given = likes.map(([item, value]) => ({ item, value }));
    const got = rank(model, { ...rest, likes: given, n: items.length || 1 });
    const lists = [got.popular, got.items.map(({ item }) => item), got.items.map((one) => one.because)];
    const off = got.items.map(({ score }, at) => Math.abs(score - scores[at]));
    const same = JSON.stringify(lists) === JSON.stringify([popular, items, reasons]);
    if (!same || !off.every((by, at) => by <= 1e-6 * Math.max(1, Math.abs(scores[at])))) {
      refuse("This browser computes other lists than the model's maker did, so nothing is recommended.");
    }
    worst = Math.max(worst, ...off);
  }
  for (const { item, items } of model.alike) {
    const got = similar(model, item, items.length || 1).map((one) => one.item);
    if (JSON.stringify(got) !== JSON.stringify(items)) refuse("This browser finds other similar titles than the maker.");
  }
  return { cases: model.cases.length + model.alike.length, worst };
}

let loaded = null;

function answer(data) {
  const model = () => loaded ?? refuse("The model is not loaded.");
  if (data?.type === "rank") return { type: "ranked", ...rank(model(), data) };
  if (data?.type === "similar") {
    return { type: "similar", item: data.item, items: similar(model(), itemOf(model(), data.item), countOf(data.n)) };
  }
  if (data?.type !== "load") refuse("The page asked for something that is unknown here.");
  const begun = performance.now();
  loaded = null;
  const fresh = modelOf(data), proof = check(fresh);
  loaded = fresh;
  return { type: "ready", ...proof, ms: performance.now() - begun };
}

self.onmessage = ({ data }) => {
  try {
    self.postMessage({ id: data?.id, ...answer(data) });
  } catch (error) {
    const reason = error instanceof Refusal ? error.message : `This could not be computed (${error.message}).`;
    self.postMessage({ type: "failed", id: data?.id, reason });
  }
};
