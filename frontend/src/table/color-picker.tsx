/** The colour of a run, for good: a click on its dot asks for it. */
import * as Popover from "@radix-ui/react-popover";
import { chooseColor, colorAt, COLOR_COUNT, useSlots } from "../state/colors";
import styles from "./table.module.css";

export interface ColorAsked {
  id: string;
  at: DOMRect;
}

export function ColorPicker({ asked, isDark, onClose }: { asked: ColorAsked; isDark: boolean; onClose: () => void }) {
  const { id, at } = asked;
  const slot = useSlots().get(id);
  return (
    <Popover.Root open onOpenChange={(open) => !open && onClose()}>
      <Popover.Anchor asChild>
        <span style={{ position: "fixed", left: at.left, top: at.top, width: at.width, height: at.height, pointerEvents: "none" }} />
      </Popover.Anchor>
      <Popover.Portal>
        <Popover.Content className={styles.colors} align="start" sideOffset={2} aria-label="Colour">
          {Array.from({ length: COLOR_COUNT }, (_, choice) => (
            <button
              key={choice}
              type="button"
              className={styles.color}
              style={{ background: colorAt(choice, isDark) }}
              aria-label={`Colour ${choice + 1}`}
              aria-pressed={slot === choice}
              onClick={() => {
                chooseColor(id, choice);
                onClose();
              }}
            />
          ))}
        </Popover.Content>
      </Popover.Portal>
    </Popover.Root>
  );
}
