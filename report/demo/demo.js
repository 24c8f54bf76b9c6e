// Sends a prompt to the chosen models, and shows what each says as it comes.
const element = (name, attributes = {}, ...children) => {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
};
const percent = (share) => `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`;
const visible = (text) => {  // as quotes and white space can be seen
  const plain = text.replaceAll("▁", " ");
  return plain.trim() ? plain : JSON.stringify(plain).slice(1, -1).replaceAll(" ", "␣") || "∅";
};

const ranked = (pairs) => element("ol", {}, ...pairs.map(([text, share]) => element("li", {},
  element("span", {}, visible(text)), element("span", {class: "number"}, percent(share)),
  element("span", {class: "bar", style: `--share: ${share}`, "aria-hidden": "true"}))));

const pieces = (tokens) => element("details", {}, element("summary", {}, `The prompt: ${tokens.length} tokens`),
  element("p", {}, ...tokens.map((token) => element("code", {class: "piece"}, token))));

function show(card, prompt, found) {
  const {text, lists, state} = card;
  if (found.tokens) card.details = pieces(found.tokens);
  if (found.masks) found.masks.forEach((mask, number) => {
    if (found.masks.length > 1) lists.append(element("h4", {}, `[MASK] ${number + 1}`));
    lists.append(ranked(mask));
  });
  if (found.probability !== undefined) {
    const candidates = found.candidates.map(([piece, share]) => `${visible(piece)} ${percent(share)}`).join("\n");
    const token = element("span", {class: "token", tabindex: "0", style: `--share: ${found.probability}`,
      title: `${percent(found.probability)}\n\n${candidates}`}, found.text);
    const tell = () => lists.replaceChildren(element("h4", {}, `In place of “${visible(found.text)}”, ${percent(found.probability)}`),
      ranked(found.candidates));
    token.addEventListener("focus", tell);
    token.addEventListener("pointerenter", tell);
    text.append(token);
    card.count += 1;
  }
  if (found.error) lists.append(element("p", {class: "error", role: "alert"}, found.error));
  if (found.seconds !== undefined) {
    const speed = card.count ? `${card.count} tokens, ${Math.round(card.count / found.seconds)} a second` : "";
    state.textContent = speed || `${found.seconds.toFixed(2)} s`;
    if (card.details) card.box.append(card.details);
  }
}

async function ask(form, model, card) {
  const values = new FormData(form);
  const prompt = values.get("prompt");
  const number = (name, otherwise) => Number(values.get(name) ?? otherwise);
  const request = {model, prompt, length: number("length", 1), temperature: number("temperature", 0),
    top_p: number("top_p", 1), seed: number("seed", 0)};
  if (form.dataset.kind === "causal") card.text.append(element("span", {class: "asked"}, prompt));
  try {
    const answer = await fetch("run", {method: "POST", body: JSON.stringify(request),
      headers: {"Content-Type": "application/json"}});
    if (!answer.ok) throw new Error(answer.status === 413 ? "The prompt is too long." : `The server says ${answer.status}.`);
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let held = ""; ;) {
      const {value, done} = await reader.read();
      const lines = (held + (value ?? "")).split("\n");
      held = lines.pop();
      for (const line of lines) show(card, prompt, JSON.parse(line));
      if (done) break;
    }
  } catch (error) {
    show(card, prompt, {error: error instanceof TypeError ? "The program that answers has ended." : error.message});
  }
  card.box.removeAttribute("aria-busy");
}

for (const form of document.querySelectorAll("form.demo")) {
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const button = form.querySelector("button");
    button.disabled = true;
    const cards = [...form.querySelectorAll("[name=model]:checked")].map(({value}) => {
      const state = element("span", {class: "note"}, "waiting");
      const text = element("p", {class: "text"}), lists = element("div");
      const box = element("section", {class: "reply", "aria-busy": "true", "aria-label": value},
        element("h3", {}, `${value} `, state), ...(form.dataset.kind === "causal" ? [text] : []), lists);
      return {value, state, text, lists, box, count: 0};
    });
    form.querySelector(".replies").replaceChildren(...cards.map(({box}) => box));
    for (const card of cards) await ask(form, card.value, card);
    button.disabled = false;
  });
  form.querySelector("textarea").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
}
document.documentElement.dataset.ready = "";
