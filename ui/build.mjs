// Builds the page into the Python package: one script, one style sheet, the icon and the licences.
//
// The first line of the script has the hash of all that it was made of. tests/test_page.py compares it
// with the sources, so that nobody forgets to build; that needs no npm.
import { build } from "esbuild";
import { createHash } from "node:crypto";
import { copyFileSync, mkdirSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const target = join(here, "../src/emberflow/runners/live/web/page");
const sources = ["build.mjs", "package-lock.json", ...readdirSync(join(here, "src")).map((name) => `src/${name}`)].sort();

const hash = createHash("sha256");
for (const name of sources) hash.update(`${name}\n`).update(readFileSync(join(here, name)));
const digest = hash.digest("hex");

mkdirSync(target, { recursive: true });
await build({
  absWorkingDir: here,
  entryPoints: { page: "src/main.js" },
  bundle: true,
  minify: true,
  format: "iife",
  target: ["es2022"],
  legalComments: "none",
  charset: "utf8",
  banner: { js: `/* Made by make ui of sources ${digest}. See LICENSES.txt. */` },
  outdir: target,
  logLevel: "warning",
});
for (const name of ["page.html", "icon.svg"]) copyFileSync(join(here, "src", name), join(target, name));

const bundled = ["uplot", "@dagrejs/dagre", "@dagrejs/graphlib"];
const licences = bundled.map((name) => {
  const folder = join(here, "node_modules", name);
  const { version } = JSON.parse(readFileSync(join(folder, "package.json")));
  return `${name} ${version}\n\n${readFileSync(join(folder, "LICENSE"), "utf8").trim()}\n`;
});
writeFileSync(join(target, "LICENSES.txt"), `The page contains these libraries.\n\n${licences.join(`\n${"-".repeat(72)}\n\n`)}`);
