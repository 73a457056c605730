/** The colour of a run, for good: a click on its dot asks for it. */
import * as Popover from "@radix-ui/react-popover";
import { chooseColor, colorAt, COLOR_COUNT, slotOf } from "../state/colors";
import styles from "./table.module.css";

export interface ColorAsked {
  id: string;
  at: DOMRect;
}

export function ColorPicker({ asked, isDark, onClose }: { asked: ColorAsked; isDark: boolean; onClose: () => void }) {
  const { id, at } = asked;
  return (
    <Popover.Root open onOpenChange={(open) => !open && onClose()}>
      <Popover.Anchor asChild>
        <span style={{ position: "fixed", left: at.left, top: at.top, width: at.width, height: at.height, pointerEvents: "none" }} />
      </Popover.Anchor>
      <Popover.Portal>
        <Popover.Content className={styles.colors} align="start" sideOffset={2} aria-label="Colour">
          {Array.from({ length: COLOR_COUNT }, (_, slot) => (
            <button
              key={slot}
              type="button"
              className={styles.color}
              style={{ background: colorAt(slot, isDark) }}
              aria-label={`Colour ${slot + 1}`}
              aria-pressed={slotOf(id) === slot}
              onClick={() => {
                chooseColor(id, slot);
                onClose();
              }}
            />
          ))}
        </Popover.Content>
      </Popover.Portal>
    </Popover.Root>
  );
}
