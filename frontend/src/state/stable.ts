import { useMemo } from "react";

/** Return the same object as long as it says the same. */
export function useStable<T>(value: T): T {
  const key = JSON.stringify(value);
  // eslint-disable-next-line react-hooks/exhaustive-deps -- the key says all of the value
  return useMemo(() => value, [key]);
}
