"""A shop, and customers whom it has never seen: three likes have to do, and nothing about them is stored.

Made data: 1,500 customers, 400 products. Three hundred of them take no part in learning. Each then names three
products and is shown ten; how often is the product among them that they took next?
"""

import numpy as np

import fedtaste

NEW, LIKES, SHOWN = 300, 3, 10

data = fedtaste.load("synthetic:1500x400x60000")
histories, catalogue = data.histories(), len(data.items)
order = np.random.default_rng(0).permutation(histories.people)
new, known = order[:NEW], np.sort(order[NEW:])
model = fedtaste.factorization(catalogue, k=16)


def learn(method: fedtaste.Method, rounds: int) -> fedtaste.State:
    people = fedtaste.of_histories(histories, catalogue, members=known)
    *_, done = fedtaste.run(method, model, people, rounds=rounds)
    return done.state


def hits(method: fedtaste.Method, state: fedtaste.State, likes: int) -> float:
    """How often the newest product is shown, from the few before it."""
    taken = [histories.of(person).tolist() for person in new]
    return np.mean([own[-1] in fedtaste.top_items(method, model, state, own[-1 - likes : -1], SHOWN) for own in taken])


popular, fedals = fedtaste.popularity(model), fedtaste.fedals(model)
state = learn(fedals, rounds=6)
everybodys = hits(popular, learn(popular, rounds=1), LIKES)
print(f"{NEW} new customers, {SHOWN} of {catalogue} products shown. The one they took next is among them for")
print(f"  {everybodys:4.0%} when everybody is shown what sells best")
for likes in (1, LIKES, 10):
    print(f"  {hits(fedals, state, likes):4.0%} when FedALS knows {likes} of their likes")

likes = histories.of(new[0])[-LIKES:].tolist()
print(f"Somebody who likes {', '.join(data.titles[item] for item in likes)} is shown:")
for item in fedtaste.top_items(fedals, model, state, likes, n=3):
    print(f"  {data.titles[item]} - {data.genres[item]}")
kept = list(state.private.initial)
print(f"Kept about them: {', '.join(kept) or 'nothing'}. The answer was computed from what the shop shares with all.")
