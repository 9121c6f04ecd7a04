"""Recommendations for new customers of a shop from three likes; nothing about these customers is stored.

The data are generated: 1,500 customers and 400 products. Three hundred customers take no part in training. Each then
names three products and is shown ten. The example prints how often their next product is among the ten.
"""

import numpy as np

import fedtaste

NEW, LIKES, SHOWN = 300, 3, 10

data = fedtaste.load("synthetic:1500x400x60000")
histories, catalogue = data.histories(), len(data.items)
order = np.random.default_rng(0).permutation(histories.people)
new, known = order[:NEW], np.sort(order[NEW:])
model = fedtaste.factorization(catalogue, k=16)


def train(method: fedtaste.Method, rounds: int) -> fedtaste.State:
    people = fedtaste.of_histories(histories, catalogue, members=known)
    *_, last = fedtaste.run(method, model, people, rounds=rounds)
    return last.state


def hits(method: fedtaste.Method, state: fedtaste.State, likes: int) -> float:
    """How often the newest product of new customers is recommended from the `likes` products before it."""
    histories_of_new = [histories.of(person).tolist() for person in new]
    lists = [fedtaste.top_items(method, model, state, own[-1 - likes : -1], SHOWN) for own in histories_of_new]
    return np.mean([own[-1] in items for own, items in zip(histories_of_new, lists)])


popular, fedals = fedtaste.popularity(model), fedtaste.fedals(model)
state = train(fedals, rounds=6)
baseline = hits(popular, train(popular, rounds=1), LIKES)
print(f"{NEW} new customers see {SHOWN} of {catalogue} products. Their next product is among them for")
print(f"  {baseline:4.0%} with the most popular products")
for likes in (1, LIKES, 10):
    print(f"  {hits(fedals, state, likes):4.0%} with FedALS and {likes} of their likes")

likes = histories.of(new[0])[-LIKES:].tolist()
print(f"A customer who likes {', '.join(data.titles[item] for item in likes)} sees:")
for item in fedtaste.top_items(fedals, model, state, likes, n=3):
    print(f"  {data.titles[item]} - {data.genres[item]}")
stored = list(state.private.initial)
print(
    f"Stored about them: {', '.join(stored) or 'nothing'}. "
    "Recommendations need only the shared parameters and the likes."
)
