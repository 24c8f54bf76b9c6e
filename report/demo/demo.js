// Sends a prompt to the chosen models, and shows what each says as it comes.
const element = (name, attributes = {}, ...children) => {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
};
const percent = (share) => share > 0 && share < 0.0005 ? "<0.1 %" : `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`;
// With white space that can be seen.
const visible = (text) => text.replaceAll(/^ | $/g, "␣").replaceAll("\n", "↵").replaceAll("\t", "⇥") || "∅";

const ranked = (pairs) => element("ol", {}, ...pairs.map(([text, share]) => element("li", {},
  element("span", {}, visible(text)), element("span", {class: "number"}, percent(share)),
  element("span", {class: "bar", style: `--share: ${share}`, "aria-hidden": "true"}))));

// How the prompt is cut; with the probability of each token, and bits per byte, once they are known: when it is opened.
function pieces(card) {
  const {tokens, scored, ids, words, unknown, pseudo, bits_per_byte: bits} = card.cut;
  const shown = tokens.map((token, number) => {
    const share = scored?.[number] ?? undefined;
    const code = element("code", {class: share === undefined ? "piece" : "piece token", style: `--share: ${share ?? 0}`}, visible(token));
    const id = ids?.[number];
    const below = share !== undefined ? percent(share) : id !== undefined && id === unknown ? `${id}: unknown` : id;
    return element("span", {}, code, ...(below === undefined ? [] : [element("small", {}, below)]));
  });
  const said = bits !== undefined ? `, ${bits.toFixed(2)} ${pseudo ? "pseudo " : ""}bits per byte`
    : words ? `, ${(tokens.length / words).toFixed(2)} a word` : "";
  const made = element("details", {}, element("summary", {}, `The prompt: ${tokens.length} tokens${said}`),
    element("div", {class: "cut"}, ...shown));
  made.open = (scored ?? ids) !== undefined;
  let asking = false;
  if (!scored && card.causal) made.addEventListener("toggle", async () => {
    if (!made.open || asking) return;
    asking = true;
    const probe = cardOf({...card.request, length: 0}, true);
    made.lastChild.replaceChildren(...shown, probe.state, probe.lists);
    await ask(probe);
    asking = false;
    if (!probe.cut?.scored) return;
    const whole = pieces(probe), focused = made.contains(document.activeElement);
    whole.open = made.open;
    made.replaceWith(whole);
    if (focused) whole.firstChild.focus();
  });
  return made;
}

const cardOf = (request, causal) => ({request, causal, count: 0, reply: "", state: element("span", {class: "note"}, "waiting"),
  text: element("p", {class: "text"}), lists: element("div")});

function addToken(card, {text, probability, candidates}) {
  const token = element("span", {class: "token", role: "button", tabindex: card.count ? "-1" : "0",
    style: `--share: ${probability}`, title: percent(probability)}, text);
  const tell = () => card.lists.replaceChildren(
    element("h4", {}, `In place of “${visible(text)}”, ${percent(probability)}`), ranked(candidates));
  token.addEventListener("focus", tell);
  token.addEventListener("pointerenter", tell);
  token.addEventListener("keydown", ({key}) => {
    const next = {ArrowRight: token.nextElementSibling, ArrowLeft: token.previousElementSibling}[key];
    if (next?.classList.contains("token")) next.focus();
  });
  card.text.append(token);
  card.reply += text;
  card.began ??= performance.now();
  card.last = performance.now();
  card.count += 1;
}

function show(card, found) {
  if (found.tokens || found.scored) Object.assign(card.cut ??= {}, found);
  found.masks?.forEach((mask, number) => {
    if (found.masks.length > 1) card.lists.append(element("h4", {}, `[MASK] ${number + 1}`));
    card.lists.append(ranked(mask));
  });
  if (found.labels) card.lists.append(ranked(found.labels));
  if (found.number !== undefined) card.lists.append(element("p", {class: "text"}, found.number.toPrecision(4)));
  if (found.probability !== undefined) addToken(card, found);
  if (found.rest) {
    card.text.append(found.rest);
    card.reply += found.rest;
  }
  if (found.error) {
    card.lists.append(element("p", {class: "error", role: "alert"}, found.error));
    card.state.textContent = "";
  }
  if (found.seconds !== undefined) {
    const speed = (card.count - 1) / ((card.last - card.began) / 1000);
    card.state.textContent = card.count > 9 ? `${card.count} tokens, ${Math.round(speed)} a second`
      : card.count || card.lists.childElementCount || card.cut?.scored || card.cut?.ids ? `${found.seconds.toFixed(2)} s` : "ends here";
    if (card.cut) card.box?.append(pieces(card));
  }
  card.whole ||= found.seconds !== undefined;
  card.ended ||= found.error !== undefined || found.seconds !== undefined;
}

async function ask(card) {
  card.state.textContent = "running";
  const answer = await fetch("run", {method: "POST", body: JSON.stringify(card.request),
    headers: {"Content-Type": "application/json"}}).catch(() => undefined);
  if (!answer?.ok) return show(card, {error: answer ? `The server says ${answer.status}.` : "The program that answers has ended."});
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let held = ""; ;) {
    const {value, done} = await reader.read().catch(() => ({done: true}));
    const lines = (held + (value ?? "")).split("\n");
    held = lines.pop();
    for (const line of lines) show(card, JSON.parse(line));
    if (done) break;
  }
  if (!card.ended) show(card, {error: "The answer broke off."});
}

for (const form of document.querySelectorAll("form.demo")) {
  const button = form.querySelector("button"), status = form.querySelector("[role=status]");
  const area = form.querySelector("[name=prompt]"), again = form.querySelector(".again");
  const chats = form.dataset.kind === "chat", conversations = new Map();
  form.querySelector(".prompts")?.addEventListener("change", ({target}) => {
    if (!target.value) return;
    area.value = target.value;
    const other = target.selectedOptions[0].dataset.second;
    if (other !== undefined) form.querySelector("[name=second]").value = other;
  });
  for (const range of form.querySelectorAll("[type=range]"))
    range.addEventListener("input", () => { range.nextElementSibling.textContent = range.value; });
  again?.addEventListener("click", () => {
    conversations.clear();
    form.querySelector(".replies").replaceChildren();
    area.focus();
  });
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const {model, prompt, system, second, ...numbers} = Object.fromEntries(new FormData(form));
    const started = system?.trim() ? [{role: "system", content: system}] : [];
    const two = new Set([...form.querySelectorAll("[data-texts='2']")].map(({value}) => value));
    const asked = (value) => chats ? [...(conversations.get(value) ?? started), {role: "user", content: prompt}]
      : two.has(value) ? [prompt, second] : prompt;
    const settings = Object.fromEntries(Object.entries(numbers).map(([name, value]) => [name, Number(value)]));
    const models = [...form.querySelectorAll("[name=model]:checked")].map(({value}) => value);
    const size = Math.max(0, ...models.map((value) => new Blob([JSON.stringify(asked(value))]).size));
    const largest = Number(document.body.dataset.largest);
    status.textContent = !prompt.trim() ? "Write something first." : models.length ? size < largest - 500 ? "" : "The prompt is too long." : "Choose a model.";
    if (status.textContent) return;
    button.disabled = true;
    if (again) again.disabled = true;
    if (chats) area.value = "";
    const cards = models.map((value) => {
      const card = cardOf({...settings, model: value, prompt: asked(value)}, ["causal", "chat"].includes(form.dataset.kind));
      card.box = element("section", {class: "reply", "aria-busy": "true", "aria-label": value},
        element("h3", {}, `${value} `, card.state), ...(card.causal ? [card.text] : []), card.lists);
      for (const {role, content} of chats ? card.request.prompt : []) {
        card.text.append(element("span", {class: `turn ${role}`}, element("b", {}, role), ` ${content}`));
      }
      card.text.append(chats ? element("b", {}, "assistant ") : element("span", {class: "asked"}, prompt));
      return card;
    });
    form.querySelector(".replies").replaceChildren(...cards.map(({box}) => box));
    for (const card of cards) {
      await ask(card);
      if (chats && card.whole && settings.length) {
        conversations.set(card.request.model, [...card.request.prompt, {role: "assistant", content: card.reply.trim()}]);
      }
      card.box.removeAttribute("aria-busy");
    }
    status.textContent = `${cards.length} answered.`;
    if (chats && !(settings.length && cards.some(({whole}) => whole)) && !area.value) area.value = prompt;
    if (again) again.disabled = false;
    button.disabled = false;
  });
  for (const one of form.querySelectorAll("textarea")) one.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !event.repeat && !button.disabled) form.requestSubmit();
  });
}
document.documentElement.dataset.ready = "";
