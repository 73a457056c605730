/** What every tab of a run is given. */
import type { Schema } from "../../api/client";
import type { RunSearch } from "../../state/address";

export type RunFacts = Schema["RunFacts"];

export interface TabProps {
  run: RunFacts;
  search: RunSearch;
  onChange: (changes: Partial<RunSearch>, stays?: boolean) => void;
}
