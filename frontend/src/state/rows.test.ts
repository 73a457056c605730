/** Answers that come in another order than they were asked for. */
import { afterEach, describe, expect, it, vi } from "vitest";
import { Sheet } from "../chart/sheets";
import { Rows } from "./rows";

vi.hoisted(() => {
  const nothing = () => undefined;
  Object.assign(globalThis, {
    window: globalThis,
    document: { baseURI: "http://127.0.0.1/" },
    matchMedia: () => ({ matches: false, addEventListener: nothing, removeEventListener: nothing }),
  });
});

/** Answer requests by hand; each is called with the body of its answer. */
function heldRequests(): ((body: BodyInit) => void)[] {
  const held: ((body: BodyInit) => void)[] = [];
  vi.stubGlobal("fetch", () => new Promise<Response>((resolve) => held.push((body) => resolve(new Response(body, { headers: { "content-type": "application/json" } })))));
  return held;
}

function rowsOf(version: number, tag: string): string {
  return JSON.stringify({ version, total: 1, runs: 1, columns: [], reading: null, groups: [], rows: [{ id: "abcdefgh", tag }] });
}

/** Return a packed curve whose every value is `value`. */
function packed(value: number, revisions: Record<string, number> = {}): ArrayBuffer {
  const curve = { run: "abcdefgh", metric: "loss", branch: 0, raw: true, total: 1, first: 1, last: 1, width: 0, bad: 0, badAt: null, n: 1, sameX: null };
  let head = JSON.stringify({ curves: [curve], missing: [], revisions });
  while ((4 + head.length) % 8) head += " ";
  const buffer = new ArrayBuffer(4 + head.length + 16);
  new DataView(buffer).setUint32(0, head.length, true);
  new Uint8Array(buffer, 4).set(new TextEncoder().encode(head));
  new Float64Array(buffer, 4 + head.length).set([1, value]);
  return buffer;
}

afterEach(() => void vi.unstubAllGlobals());

describe("an answer that was overtaken by a later one", () => {
  it("changes no row", async () => {
    const held = heldRequests();
    const rows = new Rows({ project: "", where: "", sort: [], columns: [], group: [], archived: false, tests: false });
    void rows.refresh();

    held[1]!(rowsOf(8, "new"));
    await vi.waitFor(() => expect(rows.version).toBe(8));
    held[0]!(rowsOf(7, "old"));
    await vi.waitFor(() => expect(rows.snapshotVersion).toBe(2));

    expect(rows.version).toBe(8);
    expect(rows.line(0)).toMatchObject({ run: { tag: "new" } });
  });

  it("does not take back what is shown before the server has done it", async () => {
    const held = heldRequests();
    const rows = new Rows({ project: "", where: "", sort: [], columns: [], group: [], archived: false, tests: false });
    const end = rows.patch((run) => ({ ...run, tag: "renamed" }));

    held[0]!(rowsOf(7, "old"));
    await vi.waitFor(() => expect(rows.version).toBe(7));

    expect(rows.line(0)).toMatchObject({ run: { tag: "renamed" } });
    end();
    expect(rows.line(0)).toMatchObject({ run: { tag: "old" } });
  });

  it("changes no curve", async () => {
    const held = heldRequests();
    const sheet = new Sheet({ project: "", x: "", low: null, high: null, points: 24, logx: false, branches: false, smooth: 0, means: false });
    sheet.need(["abcdefgh"], "loss");
    await vi.waitFor(() => expect(held).toHaveLength(1));
    sheet.forget(["abcdefgh"]);
    sheet.need(["abcdefgh"], "loss");
    await vi.waitFor(() => expect(held).toHaveLength(2));
    const before = sheet.version;

    held[1]!(packed(2));
    await vi.waitFor(() => expect(sheet.version).toBe(before + 1));
    held[0]!(packed(1));
    await vi.waitFor(() => expect(sheet.version).toBe(before + 2));

    expect([...sheet.curve("abcdefgh", "loss")![0]!.means]).toEqual([2]);
  });
});

describe("a curve that was answered before the stream of changes was open", () => {
  const look = { project: "", x: "", low: null, high: null, points: 24, logx: false, branches: false, smooth: 0, means: false };

  it.each([
    [{ abcdefgh: 7 }, 2],
    [{ abcdefgh: 0 }, 1],
  ])("is asked for again when its run is open: revisions %o", async (revisions, requests) => {
    const held = heldRequests();
    const sheet = new Sheet(look);
    sheet.mount("loss");
    sheet.need(["abcdefgh"], "loss");
    await vi.waitFor(() => expect(held).toHaveLength(1));
    const before = sheet.version;
    held[0]!(packed(1, revisions));
    await vi.waitFor(() => expect(sheet.version).toBe(before + 1));

    sheet.streamOpened();

    await new Promise((resume) => setTimeout(resume, 400));
    expect(held).toHaveLength(requests);
  });

  it("is asked for again though its answer was still under way", async () => {
    const held = heldRequests();
    const sheet = new Sheet(look);
    sheet.mount("loss");
    sheet.need(["abcdefgh"], "loss");
    await vi.waitFor(() => expect(held).toHaveLength(1));
    sheet.streamOpened();

    held[0]!(packed(1, { abcdefgh: 7 }));

    await vi.waitFor(() => expect(held).toHaveLength(2));
    held[1]!(packed(2, { abcdefgh: 8 }));
    await vi.waitFor(() => expect([...sheet.curve("abcdefgh", "loss")![0]!.means]).toEqual([2]));
  });
});
