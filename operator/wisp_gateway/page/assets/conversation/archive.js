// Keeps conversations in this browser (IndexedDB), the newest 300; in memory where the browser keeps none.
import { afterReload, isMatch, summaryOf } from "./conversation.js";

const MAX_CONVERSATIONS = 300;
const DATABASE = "wisp-chat";

/** Open the archive; it keeps in memory what the browser does not want to keep, and `problem` says so. */
export async function openArchive(name = DATABASE, limit = MAX_CONVERSATIONS) {
  try {
    return new Archive(await openDatabase(name), limit);
  } catch (error) {
    const archive = new Archive(null, limit);
    archive.problem = `This browser doesn’t let this page store anything (${error.message}). Export what you want to keep.`;
    return archive;
  }
}

class Archive {
  #database;
  #limit;
  #unsaved = new Map(); // conversations that the browser did not take, by id
  problem = "";

  constructor(database, limit) {
    this.#database = database;
    this.#limit = limit;
  }

  /** Summaries of all conversations, the newest first. */
  async list() {
    const summaries = new Map();
    if (this.#database) {
      for (const summary of await result(this.#read("summaries").getAll())) summaries.set(summary.id, summary);
    }
    for (const conversation of this.#unsaved.values()) summaries.set(conversation.id, summaryOf(conversation));
    return [...summaries.values()].sort((a, b) => b.updated - a.updated);
  }

  async load(id) {
    const unsaved = this.#unsaved.get(id);
    if (unsaved || !this.#database) return unsaved ?? null;
    const saved = await result(this.#read("conversations").get(id));
    return saved ? afterReload(saved) : null;
  }

  /** Keep a conversation; beyond the limit the oldest go. */
  async save(conversation) {
    const copy = JSON.parse(JSON.stringify(conversation));
    this.#unsaved.set(copy.id, copy);
    if (!this.#database) return;
    try {
      await this.#write((conversations, summaries) => {
        conversations.put(copy);
        summaries.put(summaryOf(copy));
      });
      this.#unsaved.delete(copy.id);
      this.problem = "";
      await this.#dropOldest();
    } catch (error) {
      this.problem = problemOfWrite(error);
    }
  }

  async remove(id) {
    this.#unsaved.delete(id);
    if (!this.#database) return;
    await this.#write((conversations, summaries) => {
      conversations.delete(id);
      summaries.delete(id);
    }).catch((error) => (this.problem = problemOfWrite(error)));
  }

  /** Ids of the conversations that hold every word, in title or text. */
  async search(query) {
    const words = query.toLowerCase().split(/\s+/).filter(Boolean);
    const ids = new Set();
    for (const { id } of await this.list()) {
      const conversation = await this.load(id);
      if (conversation && isMatch(conversation, words)) ids.add(id);
    }
    return ids;
  }

  async #dropOldest() {
    const summaries = await this.list();
    for (const { id } of summaries.slice(this.#limit)) await this.remove(id);
  }

  #read(name) {
    return this.#database.transaction(name, "readonly").objectStore(name);
  }

  #write(change) {
    return new Promise((resolve, reject) => {
      const names = ["conversations", "summaries"];
      const transaction = this.#database.transaction(names, "readwrite");
      transaction.oncomplete = () => resolve();
      transaction.onabort = () => reject(transaction.error ?? new Error("the write was aborted"));
      change(...names.map((name) => transaction.objectStore(name)));
    });
  }
}

function problemOfWrite(error) {
  const isFull = error?.name === "QuotaExceededError";
  const what = isFull
    ? "This browser has no more space for this page"
    : `This browser could not save (${error?.message})`;
  return `${what}. The conversation lasts until the page is closed: export it, or delete others.`;
}

function openDatabase(name) {
  const opening = indexedDB.open(name, 1);
  opening.onupgradeneeded = () => {
    for (const store of ["conversations", "summaries"]) opening.result.createObjectStore(store, { keyPath: "id" });
  };
  return result(opening);
}

function result(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}
