import { describe, expect, it } from "vitest";
import { applied, runningJobs, type JobLine, type QueueFacts } from "./acts";

function job(id: number, facts: Partial<JobLine> = {}): JobLine {
  return { id, isHeld: false, isStopping: false, title: `job ${id}`, ...facts } as JobLine;
}

function queue(waiting: JobLine[], running: JobLine[] = []): QueueFacts {
  const holders = running.map((each) => ({ job: each, pid: 1, since: 0, memoryBytes: 0 }));
  const device = { key: "a", name: "cuda:0", sharedBy: 1, totalBytes: 0, holders };
  return { exists: true, isPaused: false, dispatcher: 1, totalWaiting: 0, totalRunning: 0, totalEnded: 0, devices: [device, { ...device, key: "b" }], waiting, ended: [] };
}

const ids = (line: readonly JobLine[]) => line.map((each) => each.id);

describe("an act on the queue", () => {
  it("pauses one job, or the whole queue without one", () => {
    const after = applied(queue([job(1), job(2)]), { act: "pause", job: 2 });
    expect(after.waiting.map((each) => each.isHeld)).toEqual([false, true]);
    expect(after.isPaused).toBe(false);
    expect(applied(after, { act: "pause" }).isPaused).toBe(true);
    expect(applied(after, { act: "resume", job: 2 }).waiting[1]!.isHeld).toBe(false);
  });

  it("takes a stopped job out of the line, and marks a running one in every lane", () => {
    const after = applied(queue([job(1)], [job(2)]), { act: "stop", job: 2 });
    expect(after.devices.every((device) => device.holders[0]!.job!.isStopping)).toBe(true);
    expect(ids(applied(after, { act: "stop", job: 1 }).waiting)).toEqual([]);
  });
});

it("counts a job with two devices once", () => {
  expect(ids(runningJobs(queue([], [job(7)])))).toEqual([7]);
});
