// Numbers, times and sizes as people read them.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const day = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });

/** 1234567 as 1.23 M: three digits that count. */
export function short(number) {
  if (number == null) return "–";
  const size = Math.abs(number);
  for (const [limit, letter] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]])
    if (size >= limit) return `${digits(number / (letter === "k" ? 1e3 : limit))} ${letter}`;
  return size >= 100 || Number.isInteger(number) ? whole.format(number) : digits(number);
}

function digits(number) {
  const size = Math.abs(number);
  return number.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : 2);
}

export const count = (number) => (number == null ? "–" : whole.format(number));
export const rate = (number) => (number == null ? "–" : `${short(number < 10 ? Math.round(number * 10) / 10 : Math.round(number))}/s`);
export const percent = (share) => (share == null ? "–" : `${(100 * share).toFixed(share < 0.1 && share >= 5e-4 ? 1 : 0)}%`);

/** A duration given in milliseconds. */
export function duration(ms) {
  if (ms == null) return "–";
  if (ms <= 0) return "0 ms";
  if (ms < 1) return "< 1 ms";
  if (ms < 1_000) return `${ms < 10 ? ms.toFixed(1) : ms.toFixed(0)} ms`;
  const seconds = ms / 1_000;
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : seconds.toFixed(0)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} days`;
}

export function bytes(number) {
  if (number == null) return "–";
  for (const [limit, unit] of [[2 ** 30, "GB"], [2 ** 20, "MB"], [2 ** 10, "kB"]])
    if (number >= limit) return `${digits(number / limit)} ${unit}`;
  return `${number} B`;
}

export const time = (ms) => clock.format(new Date(ms));

/** The clock, and before it the day, unless that is today. */
export function dated(ms) {
  const at = new Date(ms);
  return at.toDateString() === new Date().toDateString() ? time(ms) : `${day.format(at)}, ${time(ms)}`;
}

/** A time of the elements. Numbers that can be milliseconds since 1970 are shown as a clock, too. */
export function elementTime(at) {
  if (at == null) return "–";
  const number = Number(at);
  return number > 1e12 && number < 4e12 ? time(number) : String(at);
}
