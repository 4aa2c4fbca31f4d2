"""Plants faults in copies of the GPU kernel, for tests that expect to see each of them noticed.

    plant_fault.py list                        a line for each: name, warp size, what it shows as
    plant_fault.py plant NAME SOURCE OUTPUT    copies folder SOURCE (ops/gpu) to OUTPUT, changed

What a fault shows as is a kind of fault of the emulator (ops/emulator/report.h); or `counter`, one
that a launch leaves other than zero; or `wrong`, an output or cache that is not right or not the
same bits for all schedules. `sound` is none of them.
"""

import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["FAULTS", "Fault", "main"]

KERNEL = "decode_attention.h"
ENDS = "ends.h"
RING = "key_ring.h"
REGISTERS = "key_registers.h"
CACHE_ROWS = "cache_rows.h"
ROWS = "row_states.h"
STREAM = "stream.h"
NVIDIA = "primitives/nvidia.h"
AMD = "primitives/amd.h"


@dataclass(frozen=True)
class Fault:
    """One piece of source, and what stands there instead.

    Attributes:
        name: In words.
        warp_size: Of the emulator that runs it; 32 has NVIDIA's primitives, 64 AMD's.
        shows_as: How it is noticed.
        file: In the folder of the kernel.
        text: What occurs there exactly once; any white space stands for any other.
        becomes: What is planted.
    """

    name: str
    warp_size: int
    shows_as: str
    file: str
    text: str
    becomes: str

    def plant(self, folder: Path) -> None:
        """Changes the copy of the kernel in a folder.

        Raises:
            ValueError: If the text does not occur once.
        """
        path = folder / self.file
        pattern = r"\s+".join(re.escape(word) for word in self.text.split())
        source = path.read_text()
        found = len(re.findall(pattern, source))
        if found != 1:
            raise ValueError(f"{self.name}: {self.text!r} occurs {found} times in {self.file}")
        path.write_text(re.sub(pattern, lambda _: self.becomes, source))


FAULTS = (
    Fault("sound_32", 32, "sound", KERNEL, "Run();", "Run();"),
    Fault("sound_64", 64, "sound", KERNEL, "Run();", "Run();"),
    # Barriers.
    Fault(
        "no_barrier_after_the_lengths",
        32,
        "shared_race",
        KERNEL,
        "stream_.Fill(args_.seqlens_k); SyncThreads();",
        "stream_.Fill(args_.seqlens_k);",
    ),
    Fault(
        "no_barrier_after_the_append",
        64,
        "global_race",
        KERNEL,
        "Append(at, end); SyncThreads();",
        "Append(at, end);",
    ),
    Fault(
        "no_barrier_after_the_queries",
        32,
        "shared_race",
        KERNEL,
        "first, rows); SyncThreads(); const QueryFragments",
        "first, rows); const QueryFragments",
    ),
    Fault(
        "no_barrier_after_the_norms",
        64,
        "shared_race",
        KERNEL,
        "norm); } SyncThreads();",
        "norm); }",
    ),
    Fault(
        "no_barrier_before_a_tile_is_finished",
        64,
        "shared_race",
        KERNEL,
        "SyncThreads(); MergeWarps(",
        "MergeWarps(",
    ),
    Fault(
        "no_barrier_after_a_tile_is_finished",
        32,
        "shared_race",
        KERNEL,
        "SyncThreads();  // before the next states",
        "",
    ),
    Fault(
        "no_barrier_before_a_piece_arrives",
        64,
        "global_race",
        KERNEL,
        "SyncThreads(); if (ThreadIndex() == 0) {",
        "if (ThreadIndex() == 0) {",
    ),
    Fault(
        "no_barrier_after_a_piece_arrived",
        32,
        "shared_race",
        KERNEL,
        "SyncThreads(); if (Load(is_last) == 0)",
        "if (Load(is_last) == 0)",
    ),
    Fault(
        "only_one_lane_at_a_collective",
        64,
        "divergence",
        KERNEL,
        "if (Warp() == 0) stream_.Fill",
        "if (ThreadIndex() == 0) stream_.Fill",
    ),
    Fault(
        "one_turn_of_folded_rows",
        64,
        "shared_race",
        KERNEL,
        "layout_.rows * (kHeadSize + 2 * turn) + row",
        "layout_.rows * (kHeadSize + 0 * turn) + row",
    ),
    Fault(
        "uniform_where_lanes_differ",
        64,
        "divergence",
        KERNEL,
        "Position{pair, 0} < cut_.Begin(mine)",
        "Position{pair, 0} < BeginOf(mine)",
    ),
    # Keys in flight.
    Fault("no_wait_for_keys", 32, "not_waited", RING, "WaitCopies<kAhead - 1>();", ""),
    Fault(
        "one_group_too_few_waited_for",
        32,
        "not_waited",
        RING,
        "WaitCopies<kAhead - 1>();",
        "WaitCopies<kAhead>();",
    ),
    Fault("no_sync_of_the_warp", 32, "shared_race", RING, "SyncWarp();", ""),
    Fault(
        "fetch_into_the_block_in_use",
        32,
        "shared_race",
        KERNEL,
        "const auto block = keys.Next(); fetch_next();",
        "fetch_next(); const auto block = keys.Next();",
    ),
    Fault(
        "no_group_where_nothing_is_fetched",
        32,
        "not_waited",
        RING,
        "++fetched_; CommitCopies();",
        "++fetched_;",
    ),
    # Bounds.
    Fault(
        "one_row_past_the_cache",
        32,
        "out_of_bounds",
        CACHE_ROWS,
        "row < end",
        "row <= end",
    ),
    Fault(
        "one_row_past_the_cache_into_registers",
        64,
        "out_of_bounds",
        CACHE_ROWS,
        "row < end",
        "row <= end",
    ),
    Fault(
        "append_to_tiles_of_other_shares",
        64,
        "global_race",
        KERNEL,
        "if (tile >= at.tile && tile < tile_end)",
        "if (tile >= at.tile)",
    ),
    Fault(
        "append_one_row_late",
        64,
        "out_of_bounds",
        KERNEL,
        "AppendRow(args_, {sequence, token, position}",
        "AppendRow(args_, {sequence, token, position + 1}",
    ),
    Fault(
        "bias_of_keys_that_nobody_sees",
        32,
        "out_of_bounds",
        ROWS,
        "row.bias != nullptr && is_visible",
        "row.bias != nullptr",
    ),
    Fault(
        "more_query_tokens_than_keys",
        64,
        "out_of_bounds",
        STREAM,
        "return BoundedLengths(problem_, keys, queries);",
        "return {keys, queries};",
    ),
    Fault(
        "lengths_past_the_cache",
        32,
        "out_of_bounds",
        STREAM,
        "if (keys > max_length_) keys = max_length_; "
        "return BoundedLengths(problem_, keys, queries);",
        "return {keys, queries};",
    ),
    Fault(
        "positions_before_the_first",
        64,
        "out_of_bounds",
        ENDS,
        "if (position < 0) position = 0;",
        "",
    ),
    # Where pieces meet.
    Fault(
        "no_fence_before_the_counter",
        64,
        "global_race",
        KERNEL,
        "ThreadFence(); const int32_t before",
        "const int32_t before",
    ),
    Fault(
        "no_fence_after_the_counter",
        32,
        "global_race",
        KERNEL,
        "ThreadFence(); const bool completes",
        "const bool completes",
    ),
    Fault(
        "the_counter_stays",
        64,
        "counter",
        KERNEL,
        "if (completes) AtomicAdd(args_.arrived + piece.region, -count);",
        "",
    ),
    Fault(
        "merge_from_the_end",
        32,
        "wrong",
        KERNEL,
        "for (int32_t tile = piece.prefix_tiles; tile < count; ++tile)",
        "for (int32_t tile = count - 1; tile >= piece.prefix_tiles; --tile)",
    ),
    Fault(
        "fold_the_other_way_round",
        64,
        "wrong",
        KERNEL,
        "MergeChannels(Folded(i, row, 1 - turn), state)",
        "MergeChannels(state, Folded(i, row, 1 - turn))",
    ),
    Fault(
        "the_first_piece_left_out",
        32,
        "wrong",
        KERNEL,
        "tile = piece.prefix_tiles; tile < count;",
        "tile = piece.prefix_tiles + 1; tile < count;",
    ),
    # Padding.
    Fault(
        "padding_appended",
        32,
        "wrong",
        KERNEL,
        "token < lengths.queries; ++token",
        "token < args_.problem.sequence_length; ++token",
    ),
    Fault(
        "padding_stays",
        64,
        "wrong",
        KERNEL,
        "if (piece.tile_begin == 0) ClearPadding(piece, rows);",
        "",
    ),
    # Matrix fragments.
    Fault(
        "swapped_rows_of_scores_on_nvidia",
        32,
        "wrong",
        NVIDIA,
        "Lane() / 4 + 8 * slot",
        "Lane() / 4 + 8 * (1 - slot)",
    ),
    Fault(
        "swapped_keys_on_nvidia",
        32,
        "wrong",
        NVIDIA,
        "const int key = Lane() % 8 + Lane() / 16 * 8;",
        "const int key = Lane() % 8 + (1 - Lane() / 16) * 8;",
    ),
    Fault(
        "swapped_values_on_nvidia",
        32,
        "wrong",
        NVIDIA,
        "block.v + Lane() % 16 * Layout::kStride",
        "block.v + (Lane() ^ 1) % 16 * Layout::kStride",
    ),
    Fault(
        "swapped_keys_on_amd",
        64,
        "wrong",
        REGISTERS,
        "key_ + Block::KeyOfK()",
        "key_ + (Block::KeyOfK() ^ 1)",
    ),
    Fault(
        "swapped_values_on_amd",
        64,
        "wrong",
        REGISTERS,
        "key_ + Block::KeyOfV(i)",
        "key_ + Block::KeyOfV(i ^ 1)",
    ),
    Fault(
        "a_sum_over_half_the_lanes_on_amd",
        64,
        "wrong",
        AMD,
        "return x + ShuffleXor(x, 32);",
        "return x;",
    ),
)


def main(arguments: Sequence[str]) -> int:
    """Runs one of the commands above; returns the exit status."""
    if list(arguments) == ["list"]:
        for fault in FAULTS:
            print(fault.name, fault.warp_size, fault.shows_as)
        return 0
    command, name, source, output = arguments
    if command != "plant":
        raise ValueError(f"no such command: {command}")
    # Copies are as old as they are, so that a build sees them change.
    shutil.copytree(source, output, copy_function=shutil.copyfile, dirs_exist_ok=True)
    next(fault for fault in FAULTS if fault.name == name).plant(Path(output))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
