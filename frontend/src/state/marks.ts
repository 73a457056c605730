/** Moments of a run that its charts mark: checkpoints, resumes, warnings, its end. */
import { useQuery } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { useMemo, useSyncExternalStore } from "react";
import { ApiError } from "../api/client";
import { runQuery } from "../api/queries";
import type { Mark } from "../chart/plot";
import { useShared } from "./site";

const COLORS: Record<string, string> = { saved: "#1a7f37", started: "#0a6cd6", warned: "#b07a00", changed: "#8b2fb8", ended: "#c42b30" };

/** Return the marks of one run; none where it is null. */
export function useRunMarks(id: string | null): readonly Mark[] | undefined {
  const { project } = useShared();
  const navigate = useNavigate();
  const run = useRunFacts(id);
  const events = run.data?.events;
  const begun = run.data?.attempts[0]?.started;
  return useMemo(() => {
    if (!id || !events?.length || begun === undefined) return undefined;
    return events
      .filter((event) => event.kind in COLORS && event.step !== null && !(event.kind === "started" && event.step === 0) && !(event.kind === "ended" && event.text === "finished"))
      .map(
        (event): Mark => ({
          step: event.step!,
          at: event.at,
          elapsed: event.at - begun,
          label: event.kind === "saved" ? `saved ${event.text}` : event.kind === "started" ? `resumed, ${event.text}` : event.text,
          color: COLORS[event.kind]!,
          onOpen: () => void navigate({ to: "/runs/$id", params: { id }, search: { ...(project && { project }), tab: "attempts" } }),
        }),
      );
  }, [id, events, begun, navigate, project]);
}

/** Return everything about a run that fits on a page; one that is gone stays as it was. */
export function useRunFacts(id: string | null) {
  const { project, live } = useShared();
  const isGone = useSyncExternalStore(live.watch, () => id !== null && live.gone.has(id));
  // A function: what fetches it again at this moment may have heard earlier than this page is drawn that it is gone.
  const run = useQuery({ ...runQuery(project, id ?? ""), enabled: () => id !== null && !live.gone.has(id) });
  const isMissing = run.error instanceof ApiError && run.error.status === 404;
  return { data: run.data, error: run.error, isGone: isMissing || isGone };
}
