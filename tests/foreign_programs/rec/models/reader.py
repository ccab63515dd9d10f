"""Read rows `ID LABEL` from stdin, and write them as the slots of a MultiSlotDataset."""

import sys

for line in sys.stdin:
    number, label = line.split()
    print(f"1 {number} 1 {label}")
