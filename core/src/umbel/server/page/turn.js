// One turn: what has been said goes to the server, the answer grows as it comes.

import * as api from "./api.js";

/** The messages of a conversation as the server wants them. */
export function request(chat, before) {
  const messages = chat.system.trim() ? [{ role: "system", content: chat.system }] : [];
  for (const message of chat.messages.slice(0, before)) {
    const { role, content, tool_calls: calls } = message;
    if (role === "user") messages.push({ role, content });
    else if (calls?.length) messages.push({ role, content, tool_calls: calls });
    else if (content) messages.push({ role, content });
  }
  return messages;
}

/** Adds a chunk of the answer to its message; whether it shows. */
export function take(message, chunk) {
  if (chunk.usage) message.usage = chunk.usage;
  if (chunk.timings) message.timings = chunk.timings;
  if (chunk.model) message.model = chunk.model;
  const choice = chunk.choices?.[0];
  if (!choice) return false;
  const { content, reasoning_content: thought, tool_calls: calls } = choice.delta ?? {};
  const now = Date.now();
  if (typeof thought === "string" && thought) {
    message.thinking ??= now;
    message.reasoning = (message.reasoning ?? "") + thought;
  }
  const answers = (typeof content === "string" && content) || calls?.length;
  if (answers && message.thinking && !message.thought) message.thought = now - message.thinking;
  if (typeof content === "string") message.content += content;
  for (const call of calls ?? []) addCall(message, call);
  if (choice.finish_reason) message.finish = choice.finish_reason;
  return true;
}

function addCall(message, { index = 0, id, type = "function", function: part = {} }) {
  message.tool_calls ??= [];
  const calls = message.tool_calls;
  calls[index] ??= { id: id ?? `call_${index}`, type, function: { name: "", arguments: "" } };
  if (part.name) calls[index].function.name += part.name;
  if (part.arguments) calls[index].function.arguments += part.arguments;
}

/** Fills `message`, the last one of the chat; `changed` is called as it grows. Never raises. */
export async function answer(chat, message, settings, signal, changed) {
  const began = performance.now();
  try {
    const body = { model: chat.model, messages: request(chat, -1), ...settings };
    for await (const chunk of api.chat(body, signal)) {
      if (!take(message, chunk)) continue;
      message.first ??= Math.round(performance.now() - began);
      changed();
    }
    if (message.finish === "error") message.error = { message: "The answer failed.", kind: "stream" };
  } catch (error) {
    if (error.name === "AbortError") message.stopped = true;
    else if (error instanceof api.ApiError) message.error = error.told;
    else {
      message.error = { message: `The page failed: ${error.message}`, kind: "page" };
      console.error(error);
    }
  }
  message.ms = Math.round(performance.now() - began);
  delete message.cut;
}

/** An answer in place of another one, which is kept beside it. */
export function beside(old) {
  const list = versions(old);
  return { role: "assistant", content: "", others: list, at: list.length };
}

/** All versions of an answer, each without the others; empty ones are no loss. */
function versions(message) {
  const { others = [], at = 0, ...plain } = message;
  const worth = plain.content || plain.reasoning || plain.tool_calls;
  return [...others.slice(0, at), ...(worth ? [plain] : []), ...others.slice(at)];
}

/** The version with number `to` of an answer. */
export function version(message, to) {
  const list = versions(message);
  const [chosen] = list.splice(to, 1);
  return { ...chosen, others: list, at: to };
}
