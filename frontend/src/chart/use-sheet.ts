/** Curves of a look at the charts, kept up to date while they are on the page. */
import { useEffect, useMemo, useSyncExternalStore } from "react";
import type { Axis, Zoom } from "../state/address";
import { useLive, useShared } from "../state/site";
import { keyOf, lookOf, sheetOf, type Sheet } from "./sheets";

/** Return the sheet of a look. What changes meanwhile on the server comes to it by itself. */
export function useSheet(axis: Axis, zoom: Zoom | null, means: boolean): Sheet {
  const { project, live } = useShared();
  const look = lookOf(project, axis, zoom, means);
  const key = keyOf(look);
  // eslint-disable-next-line react-hooks/exhaustive-deps -- the key says all of the look
  const sheet = useMemo(() => sheetOf(look), [key]);
  useEffect(() => {
    sheet.open();
    // Of what was asked for ahead a change may have come by now.
    if (live.connection === "open") sheet.streamOpened();
    return () => sheet.close();
  }, [sheet, live]);
  useLive((event) => {
    if (event.opened) sheet.streamOpened();
    if (event.rows) sheet.grown(Object.keys(event.rows));
    if (event.changed?.length) sheet.forget(event.changed);
    if (event.version === -1) sheet.forgetAll();
  });
  return sheet;
}

export function useSheetVersion(sheet: Sheet): number {
  return useSyncExternalStore(sheet.watch, sheet.snapshot);
}
