/** Answers that are older than a change. */
import { QueryClient, QueryObserver } from "@tanstack/react-query";
import { describe, expect, it, vi } from "vitest";
import { Live } from "../api/live";
import { apply, isOutdated } from "./changes";

vi.hoisted(() => {
  const nothing = () => undefined;
  Object.assign(globalThis, {
    window: globalThis,
    document: { baseURI: "http://127.0.0.1/" },
    matchMedia: () => ({ matches: false, addEventListener: nothing, removeEventListener: nothing }),
  });
});

/** Answer by hand what is asked with a key, as long as somebody looks at it. */
function looked(queryKey: readonly unknown[]) {
  const client = new QueryClient({ defaultOptions: { queries: { staleTime: 30_000 } } });
  const held: ((answer: unknown) => void)[] = [];
  const observer = new QueryObserver(client, { queryKey, queryFn: () => new Promise<unknown>((resolve) => held.push(resolve)) });
  observer.subscribe(() => undefined);
  return { client, held, shown: () => observer.getCurrentResult().data };
}

describe("an answer that is on its way when something changes", () => {
  it.each([
    ["inbox", { inbox: true }],
    ["shown", { changed: ["abcdefgh"] }],
    ["run", { changed: ["abcdefgh"] }],
    ["queue", { queue: true }],
    ["columns", { opened: true }],
  ])("is asked for again behind it: %s", async (kind, event) => {
    const { client, held, shown } = looked([kind, "", "abcdefgh"]);
    const done = apply(client, event, "");
    void apply(client, event, "");

    held[0]!("old");
    await vi.waitFor(() => expect(held).toHaveLength(2));
    held[1]!("new");
    await done;

    expect(shown()).toBe("new");
    expect(held).toHaveLength(2);
  });

  it("is not asked for again where it turns out to be of the version that the stream begins with", async () => {
    const { client, held } = looked(["columns", ""]);
    const done = apply(client, { opened: true, version: 7 }, "");

    held[0]!({ version: 7 });
    await done;

    expect(held).toHaveLength(1);
  });

  it("is asked for again for what came meanwhile, though it is no older than the stream", async () => {
    const { client, held } = looked(["columns", ""]);
    const done = apply(client, { opened: true, version: 7 }, "");
    void apply(client, { version: 8, changed: ["abcdefgh"] }, "");

    held[0]!({ version: 7 });
    await vi.waitFor(() => expect(held).toHaveLength(2));
    held[1]!({ version: 8 });
    await done;

    expect(held).toHaveLength(2);
  });

  it("is shown though changes come faster than answers", async () => {
    const { client, held, shown } = looked(["run", "", "abcdefgh"]);
    for (let i = 0; i < 3; i++) {
      void apply(client, { files: { abcdefgh: [i, 0, 0] } }, "");
      held[i]!(`answer ${i}`);
      await vi.waitFor(() => expect(shown()).toBe(`answer ${i}`));
      await vi.waitFor(() => expect(held).toHaveLength(i + 2));
    }
  });
});

describe("what an event makes old", () => {
  it("is what the event is about, of its project", () => {
    expect(isOutdated(["run", "", "abcdefgh"], null, { changed: ["hgfedcba"] }, "")).toBe(false);
    expect(isOutdated(["run", "", "abcdefgh"], null, { gone: ["abcdefgh"] }, "")).toBe(false);
    expect(isOutdated(["inbox", "other"], null, { inbox: true }, "")).toBe(false);
    expect(isOutdated(["queue", "other", true], null, { queue: true }, "")).toBe(true);
    expect(isOutdated(["compare", "", "abcdefgh,hgfedcba", ""], null, { changed: ["hgfedcba"] }, "")).toBe(true);
  });

  it("is all that is known when the stream opens or comes back, but what never changes", () => {
    expect(isOutdated(["views", ""], [], { opened: true }, "")).toBe(true);
    expect(isOutdated(["views", ""], [], { opened: true, version: 7 }, "")).toBe(true);
    expect(isOutdated(["views", ""], [], { version: -1 }, "")).toBe(true);
    expect(isOutdated(["site", ""], {}, { opened: true }, "")).toBe(false);
  });

  it("is no answer of the version that the stream begins with", () => {
    for (const kind of ["columns", "live-count"]) {
      expect(isOutdated([kind, ""], { version: 7 }, { opened: true, version: 7 }, "")).toBe(false);
      expect(isOutdated([kind, ""], { version: 6 }, { opened: true, version: 7 }, "")).toBe(true);
    }
    expect(isOutdated(["live-count", ""], { version: 7 }, { version: 7 }, "")).toBe(false);
    expect(isOutdated(["live-count", ""], { version: 7 }, { version: 8 }, "")).toBe(true);
  });

  it("is the list of metrics when a run logs its first", () => {
    const event = { rows: { abcdefgh: 1 } };
    expect(isOutdated(["shown", "", "abcdefgh"], { metrics: [] }, event, "")).toBe(true);
    expect(isOutdated(["shown", "", "abcdefgh"], undefined, event, "")).toBe(true);
    expect(isOutdated(["shown", "", "abcdefgh"], { metrics: ["loss"] }, event, "")).toBe(false);
  });
});

describe("a run that is removed", () => {
  const stream = { onmessage: null as ((message: { data: string }) => void) | null, close: () => undefined };
  const say = (event: object) => stream.onmessage?.({ data: JSON.stringify(event) });

  it("is gone from the act on, whatever older change the stream tells, until it is back", () => {
    vi.stubGlobal("EventSource", function () {
      return stream;
    });
    const live = new Live("");
    live.listen(() => undefined);

    live.leave(["abcdefgh"]);
    say({ changed: ["abcdefgh"] });
    expect([...live.gone]).toEqual(["abcdefgh"]);

    say({ gone: ["abcdefgh"] });
    expect([...live.gone]).toEqual(["abcdefgh"]);

    say({ changed: ["abcdefgh"] });
    expect([...live.gone]).toEqual([]);
  });
});
