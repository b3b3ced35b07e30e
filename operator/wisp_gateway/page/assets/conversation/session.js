// The state of the chat: the open conversation, the answers that run, and each action of the user on them.
import { keptModels } from "../browser/storage.js";
import { isRunning, newAnswer } from "./answer.js";
import { Generation } from "./generation.js";
import { MAX_TITLE, bodyOf, newConversation, newTurn, titleOf } from "./conversation.js";

const SAVE_EVERY_MS = 2000;
const SAVE_SETTINGS_AFTER_MS = 500;

export class ChatSession {
  #archive;
  #listeners = new Set();
  #running = new Map(); // generations by their answer
  #live = new Map(); // conversations with running answers, by id
  conversation = newConversation(lastModels());
  summaries = [];
  #saving = 0;
  #removedIds = new Set(); // a running answer of theirs saves nothing
  removed = null; // the conversation that was deleted last, for “Undo”

  constructor(archive) {
    this.#archive = archive;
    addEventListener("pagehide", () => this.#live.forEach((conversation) => this.#keep(conversation)));
  }

  get problem() {
    return this.#archive.problem;
  }

  get isRunning() {
    return this.#live.has(this.conversation.id);
  }

  subscribe(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  generationOf(answer) {
    return this.#running.get(answer);
  }

  async refresh() {
    this.summaries = await this.#archive.list();
    this.#report();
  }

  search(query) {
    return this.#archive.search(query);
  }

  // Conversations

  begin() {
    this.conversation = newConversation([...this.conversation.models]);
    this.#report();
  }

  async open(id) {
    const conversation = this.#live.get(id) ?? (await this.#archive.load(id));
    if (conversation) this.conversation = conversation;
    this.#report();
  }

  async rename(id, title) {
    const conversation = await this.#find(id);
    if (!conversation) return;
    conversation.title = title.trim().slice(0, MAX_TITLE);
    await this.#save(conversation);
  }

  async remove(id) {
    this.removed = await this.#find(id);
    this.#removedIds.add(id);
    if (this.removed) this.stop(this.removed);
    if (this.conversation.id === id) this.begin();
    await this.#archive.remove(id);
    await this.refresh();
  }

  async restore() {
    const conversation = this.removed;
    this.removed = null;
    if (!conversation) return;
    this.#removedIds.delete(conversation.id);
    this.conversation = conversation;
    await this.#save(conversation);
  }

  forgetRemoved() {
    this.removed = null;
    this.#report();
  }

  /** Change settings of the open conversation: models, system, parameters. */
  change(fields) {
    Object.assign(this.conversation, fields);
    if (fields.models) keptModels.set(JSON.stringify(fields.models));
    clearTimeout(this.#saving);
    const { conversation } = this;
    this.#saving = setTimeout(() => this.#save(conversation), SAVE_SETTINGS_AFTER_MS);
    this.#report();
  }

  // Answers

  send(text, results = null) {
    const { conversation } = this;
    const turn = newTurn(text, conversation.models.map(newAnswer), results);
    conversation.turns = [...conversation.turns, turn];
    const index = conversation.turns.length - 1;
    turn.answers.forEach((answer, column) => this.#run(conversation, index, column, answer));
    this.#save(conversation);
  }

  /** Send another text in place of a turn's; what came behind it goes. */
  edit(index, text) {
    this.stop();
    this.conversation.turns = this.conversation.turns.slice(0, index);
    this.send(text);
  }

  /** Answer a turn anew, in one column; what came behind it goes. */
  regenerate(index, column) {
    const { conversation } = this;
    const turn = { ...conversation.turns[index] };
    this.#stopAnswers([turn.answers[column], ...answersOf(conversation.turns.slice(index + 1))]);
    const answer = newAnswer(conversation.models[column] ?? conversation.models[0]);
    turn.answers = turn.answers.map((old, at) => (at === column ? answer : old));
    conversation.turns = [...conversation.turns.slice(0, index), turn];
    this.#run(conversation, index, column, answer);
    this.#save(conversation);
  }

  /** Let the model go on with an answer that was interrupted, stopped, or as long as it was allowed to be. */
  goOn(index, column) {
    const { conversation } = this;
    const turn = { ...conversation.turns[index] };
    const old = turn.answers[column];
    const answer = { ...newAnswer(old.model), content: old.content, reasoning: old.reasoning };
    turn.answers = turn.answers.map((other) => (other === old ? answer : other));
    conversation.turns = conversation.turns.with(index, turn);
    this.#run(conversation, index, column, answer, old);
    this.#save(conversation);
  }

  /** Stop a conversation's answers. */
  stop(conversation = this.conversation) {
    this.#stopAnswers(answersOf(conversation.turns));
  }

  #stopAnswers(answers) {
    for (const answer of answers) this.#running.get(answer)?.stop();
  }

  async #run(conversation, index, column, answer, partial = null) {
    const generation = new Generation(answer);
    this.#running.set(answer, generation);
    this.#live.set(conversation.id, conversation);
    this.#report();
    const saving = setInterval(() => this.#keep(conversation), SAVE_EVERY_MS);
    await generation.run({ ...bodyOf(conversation, index, column, partial), model: answer.model });
    clearInterval(saving);
    this.#running.delete(answer);
    if (!hasRunning(conversation)) this.#live.delete(conversation.id);
    conversation.turns = conversation.turns.map((turn) => (turn.answers.includes(answer) ? { ...turn } : turn));
    await this.#save(conversation);
  }

  async #find(id) {
    if (this.conversation.id === id) return this.conversation;
    return this.#live.get(id) ?? (await this.#archive.load(id));
  }

  async #save(conversation) {
    this.#report();
    conversation.updated = Date.now();
    conversation.title ||= conversation.turns.length ? titleOf(conversation) : "";
    await this.#keep(conversation);
    await this.refresh();
  }

  async #keep(conversation) {
    if (!conversation.turns.length || this.#removedIds.has(conversation.id)) return;
    await this.#archive.save(conversation);
  }

  #report() {
    for (const listener of this.#listeners) listener();
  }
}

const answersOf = (turns) => turns.flatMap(({ answers }) => answers);
const hasRunning = (conversation) => answersOf(conversation.turns).some(isRunning);

function lastModels() {
  try {
    return [JSON.parse(keptModels.get())[0] ?? ""];
  } catch {
    return [""];
  }
}
