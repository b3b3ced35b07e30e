// Models that the key in use opens (`/v1/models`), beside all that the feed shows: the others need another key.

import { access, requestJson, sentenceOf, setKey } from "../api.js";
import { feed, keyOf } from "../feed.js";
import { createStore } from "../store.js";

/**
 * `cards`: rows of `/v1/models`; null before the first answer, or where the key opens nothing.
 * `locked`: keys (`namespace/name`) of the feed's models that the key does not open.
 * `problem`: the error of the last request, or null.
 */
export const catalog = createStore({ cards: null, locked: new Set(), problem: null });

let asked = ""; // key and models at the last request

/** Ask again at each change of the key and of the models that there are, until the page is closed. */
export function followCatalog() {
  feed.subscribe(refresh);
  access.subscribe(refresh);
}

async function refresh() {
  const { link, gateway, models } = feed.get();
  const isReachable = link === "open" || link === "locked";
  const now = isReachable ? [access.get().key, gateway, link, ...(models ?? []).map(keyOf)].join(" ") : "";
  if (now === asked) return;
  asked = now;
  if (!isReachable) return;
  try {
    const { data } = await requestJson("v1/models");
    if (asked === now) catalog.set({ cards: data, locked: lockedOf(models ?? [], data), problem: null });
  } catch (problem) {
    if (asked !== now) return;
    if (problem.isRefusedKey) catalog.set({ cards: null, locked: lockedOf(models ?? [], []), problem });
    else catalog.set({ problem });
  }
}

/**
 * Use `key` from now on if it opens `wanted` (a model, or null), and anything of what is locked, if anything is.
 * Return `{ problem, name }`: why it is not used, or an empty text and the name of `wanted` in requests.
 */
export async function tryKey(key, wanted) {
  if (!/^[\x21-\x7e]+$/.test(key)) return { problem: "A key has no spaces and no accented letters." };
  let cards;
  try {
    cards = (await requestJson("v1/models", { headers: { authorization: `Bearer ${key}` } })).data;
  } catch (error) {
    return { problem: sentenceOf(error) };
  }
  const { locked } = catalog.get();
  const opened = cardOf(wanted, cards);
  if (wanted && !opened) return { problem: `This key doesn’t open ${wanted.name}.` };
  const remaining = lockedOf(feed.get().models ?? [], cards);
  if (locked.size && [...locked].every((model) => remaining.has(model))) {
    return { problem: "This key opens none of the models that need one." };
  }
  setKey(key);
  catalog.set({ cards, locked: remaining, problem: null });
  return { problem: "", name: opened?.id };
}

function lockedOf(models, cards) {
  return new Set(models.filter((model) => !cardOf(model, cards)).map(keyOf));
}

/** Join `/v1/models` with the feed's models; entries are `{id, state, …}`. */
export function choicesOf(cards, models) {
  return cards.map((card) => ({ ...card, ...(models.find((model) => cardOf(model, [card])) ?? {}), id: card.id }));
}

/** The row of `/v1/models` that is `model`, which may be null. */
function cardOf(model, cards) {
  const own = cards.filter((card) => model && card.owned_by === model.namespace);
  const names = model ? [keyOf(model), model.servedName, model.name] : [];
  return names.map((name) => own.find(({ id }) => id === name)).find(Boolean);
}
