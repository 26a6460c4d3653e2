// Look up the answer in the table that was computed when the site was built.
(() => {
  const form = document.getElementById("chooser");
  const data = JSON.parse(document.getElementById("chooser-data").textContent);
  const out = form.querySelector(".answer");
  const show = () => {
    const key = data.questions.map((name) => new FormData(form).get(name)).join("|");
    const [name, givenUp] = data.answers[key];
    const [page, summary] = data.about[name];
    out.replaceChildren();
    const say = (...parts) => {
      const line = document.createElement("p");
      line.append(...parts);
      out.append(line);
    };
    const link = document.createElement("a");
    link.href = `api/${page}.html`;
    link.append(Object.assign(document.createElement("code"), { textContent: name }));
    say("Take ", link, `: ${summary}.`);
    if (givenUp.length) say(`No strategy meets every wish: ${givenUp.join("; ")}.`);
    const command = document.createElement("code");
    command.textContent = `fedclust explain ${name}`;
    say("Before anything runs, ", command, " shows what leaves each site.");
  };
  form.addEventListener("change", show);
  show();
})();
