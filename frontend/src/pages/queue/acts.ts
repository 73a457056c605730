/** Acts on jobs, and the queue as it will be when the server agrees. */
import type { Schema } from "../../api/client";

export type QueueFacts = Schema["QueueFacts"];
export type JobLine = Schema["JobLine"];
export type QueueAct = Schema["QueueAct"];

/** Return the queue after an act, as far as the page can foresee it. */
export function applied(queue: QueueFacts, act: QueueAct): QueueFacts {
  const { job } = act;
  if (job === undefined || job === null) return { ...queue, isPaused: act.act === "pause" };
  switch (act.act) {
    case "pause":
    case "resume":
      return { ...queue, waiting: queue.waiting.map((each) => (each.id === job ? { ...each, isHeld: act.act === "pause" } : each)) };
    case "stop":
      return {
        ...queue,
        waiting: queue.waiting.filter((each) => each.id !== job),
        devices: queue.devices.map((device) => ({
          ...device,
          holders: device.holders.map((holder) => (holder.job?.id === job ? { ...holder, job: { ...holder.job, isStopping: true } } : holder)),
        })),
      };
  }
}

/** Return the jobs that have a device, each once: one that has two devices stands in two lanes. */
export function runningJobs(queue: QueueFacts): JobLine[] {
  const found = new Map<number, JobLine>();
  for (const device of queue.devices) for (const holder of device.holders) if (holder.job) found.set(holder.job.id, holder.job);
  return [...found.values()];
}
