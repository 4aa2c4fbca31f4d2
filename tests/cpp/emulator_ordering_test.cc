// Which accesses of different blocks are ordered: by a fence, an atomic, an atomic that sees it and
// a fence, and by no less.

#include <gtest/gtest.h>

#include <cstdint>

#include "tests/cpp/emulator_checks.h"

namespace lean_attention::emulator {
namespace {

using gpu::kWarpSize;

constexpr uint64_t kSeeds = 20;

// What two blocks hand over, and the flag that says so.
struct Mailbox {
  DeviceBuffer<float> data{2 * kWarpSize};
  DeviceBuffer<unsigned> flag{std::vector<unsigned>{0}};
};

// Block 0 writes; block 1 takes turns until the flag is up.
template <typename Send, typename Receive>
Report Exchange(uint64_t seed, Mailbox& box, Send send, Receive receive) {
  return Launch({2, 2 * kWarpSize, 16, seed, 2}, [&] {
    if (gpu::BlockIndex() == 0) {
      send(box.data.Ptr(), box.flag.Ptr());
    } else {
      receive(box.data.Ptr(), box.flag.Ptr());
    }
  });
}

void WaitFor(GlobalPtr<unsigned> flag) {
  while (gpu::AtomicAdd(flag, 0u) == 0) {
  }
}

// Each with one step that can be left out.
enum class Without { kNothing, kBarrier, kRelease, kAcquire, kLastBarrier };

Report HandOver(uint64_t seed, Without without) {
  Mailbox box;
  return Exchange(
      seed, box,
      [=](GlobalPtr<float> data, GlobalPtr<unsigned> flag) {
        gpu::Store(data, gpu::ThreadIndex(), 1.0f);
        if (without != Without::kBarrier) gpu::SyncThreads();
        if (gpu::ThreadIndex() != 0) return;
        if (without != Without::kRelease) gpu::ThreadFence();
        gpu::AtomicAdd(flag, 1u);
      },
      [=](GlobalPtr<float> data, GlobalPtr<unsigned> flag) {
        if (gpu::ThreadIndex() == 0) {
          WaitFor(flag);
          if (without != Without::kAcquire) gpu::ThreadFence();
        }
        if (without != Without::kLastBarrier) gpu::SyncThreads();
        gpu::Load(data, (gpu::ThreadIndex() + 1) % gpu::BlockThreads());
      });
}

TEST(EmulatorOrdering, HandOver) {
  const auto is_race = [](const Report& report) {
    return Found(report, FaultKind::kGlobalRace, "gpu::Load(data", "gpu::Store(data") ||
           Found(report, FaultKind::kGlobalRace, "gpu::Store(data", "gpu::Load(data");
  };
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const Report report = HandOver(seed, Without::kNothing);
    EXPECT_TRUE(report.ok()) << report.ToString();
    for (const Without without :
         {Without::kBarrier, Without::kRelease, Without::kAcquire, Without::kLastBarrier}) {
      const Report race = HandOver(seed, without);
      EXPECT_TRUE(is_race(race)) << static_cast<int>(without) << "\n" << race.ToString();
    }
  }
}

// A fence covers what came before it, not what comes between it and the atomic.
TEST(EmulatorOrdering, WritesAfterTheFence) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    Mailbox box;
    const Report report = Exchange(
        seed, box,
        [](GlobalPtr<float> data, GlobalPtr<unsigned> flag) {
          if (gpu::ThreadIndex() != 0) return;
          gpu::ThreadFence();
          gpu::Store(data, 0, 1.0f);
          gpu::AtomicAdd(flag, 1u);
        },
        [](GlobalPtr<float> data, GlobalPtr<unsigned> flag) {
          if (gpu::ThreadIndex() != 0) return;
          WaitFor(flag);
          gpu::ThreadFence();
          gpu::Load(data);
        });
    EXPECT_TRUE(Found(report, FaultKind::kGlobalRace, "gpu::Load(data)", "gpu::Store(data, 0"));
  }
}

// Every thread's own fence before the barrier does not cover the others' writes: the thread whose
// atomic raises the flag has to fence after the barrier.
TEST(EmulatorOrdering, FencesBeforeTheBarrier) {
  Mailbox box;
  const Report report = Exchange(
      0, box,
      [](GlobalPtr<float> data, GlobalPtr<unsigned> flag) {
        gpu::Store(data, gpu::ThreadIndex(), 1.0f);
        gpu::ThreadFence();
        gpu::SyncThreads();
        if (gpu::ThreadIndex() == 0) gpu::AtomicAdd(flag, 1u);
      },
      [](GlobalPtr<float> data, GlobalPtr<unsigned> flag) {
        if (gpu::ThreadIndex() != 0) return;
        WaitFor(flag);
        gpu::ThreadFence();
        gpu::Load(data, 0);
        gpu::Load(data, 1);
      });
  EXPECT_TRUE(Found(report, FaultKind::kGlobalRace, "gpu::Load(data, 1)", "gpu::Store(data"));
}

// From block 0 to block 1 to block 2: what the first wrote reaches the last.
TEST(EmulatorOrdering, FencesAreCumulative) {
  const auto run = [](uint64_t seed, bool middle_acquires) {
    DeviceBuffer<float> data(1);
    DeviceBuffer<unsigned> flags(std::vector<unsigned>{0, 0});
    return Launch({3, kWarpSize, 0, seed, 3}, [&] {
      if (gpu::Lane() != 0) return;
      if (gpu::BlockIndex() == 0) {
        gpu::Store(data.Ptr(), 0, 1.0f);
        gpu::ThreadFence();
        gpu::AtomicAdd(flags.Ptr(), 1u);
      } else if (gpu::BlockIndex() == 1) {
        if (!middle_acquires) gpu::ThreadFence();
        WaitFor(flags.Ptr());
        if (middle_acquires) gpu::ThreadFence();
        gpu::AtomicAdd(flags.Ptr() + 1, 1u);
      } else {
        WaitFor(flags.Ptr() + 1);
        gpu::ThreadFence();
        gpu::Load(data.Ptr());
      }
    });
  };
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const Report report = run(seed, true);
    EXPECT_TRUE(report.ok()) << report.ToString();
    EXPECT_TRUE(Found(run(seed, false), FaultKind::kGlobalRace, "gpu::Load(data.Ptr())",
                      "gpu::Store(data.Ptr()"));
  }
}

// To hear from a block again, but of an earlier time, takes nothing away.
TEST(EmulatorOrdering, OldNews) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    DeviceBuffer<float> data(1);
    DeviceBuffer<unsigned> flags(std::vector<unsigned>{0, 0});
    const Report report = Launch({2, kWarpSize, 0, seed, 2}, [&] {
      if (gpu::Lane() != 0) return;
      if (gpu::BlockIndex() == 0) {
        gpu::ThreadFence();
        gpu::AtomicAdd(flags.Ptr(), 1u);
        gpu::Store(data.Ptr(), 0, 1.0f);
        gpu::ThreadFence();
        gpu::AtomicAdd(flags.Ptr() + 1, 1u);
      } else {
        WaitFor(flags.Ptr() + 1);
        WaitFor(flags.Ptr());
        gpu::ThreadFence();
        WaitFor(flags.Ptr());
        gpu::ThreadFence();
        gpu::Load(data.Ptr());
      }
    });
    EXPECT_TRUE(report.ok()) << report.ToString();
  }
}

// An atomic elsewhere says nothing.
TEST(EmulatorOrdering, AnotherFlag) {
  DeviceBuffer<float> data(1);
  DeviceBuffer<unsigned> flags(std::vector<unsigned>{0, 0});
  const Report report = Launch({2, kWarpSize, 0, 0, 2}, [&] {
    if (gpu::Lane() != 0) return;
    if (gpu::BlockIndex() == 0) {
      gpu::Store(data.Ptr(), 0, 1.0f);
      gpu::ThreadFence();
      gpu::AtomicAdd(flags.Ptr(), 1u);
      gpu::AtomicAdd(flags.Ptr() + 1, 1u);
    } else {
      WaitFor(flags.Ptr());
      gpu::ThreadFence();
      gpu::Load(data.Ptr());
    }
  });
  EXPECT_TRUE(report.ok()) << report.ToString();
  const Report race = Launch({2, kWarpSize, 0, 0, 1}, [&] {
    if (gpu::Lane() != 0) return;
    if (gpu::BlockIndex() == 0) gpu::Store(data.Ptr(), 0, 1.0f);
    gpu::ThreadFence();
    gpu::AtomicAdd(flags.Ptr() + gpu::BlockIndex(), 1u);
    gpu::ThreadFence();
    if (gpu::BlockIndex() == 1) gpu::Load(data.Ptr());
  });
  EXPECT_TRUE(
      Found(race, FaultKind::kGlobalRace, "gpu::Load(data.Ptr())", "gpu::Store(data.Ptr()") ||
      Found(race, FaultKind::kGlobalRace, "gpu::Store(data.Ptr()", "gpu::Load(data.Ptr())"))
      << race.ToString();
}

// Blocks that write one address, and a plain access beside atomics.
TEST(EmulatorOrdering, WritesAndAtomics) {
  DeviceBuffer<unsigned> word(std::vector<unsigned>{0});
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const Report writes = Launch({2, kWarpSize, 0, seed, 1}, [&] {
      if (gpu::Lane() == 0) gpu::Store(word.Ptr(), 0, 1u);
    });
    EXPECT_TRUE(Found(writes, FaultKind::kGlobalRace, "gpu::Store(word", "gpu::Store(word"));
    const Report atomics =
        Launch({4, 2 * kWarpSize, 0, seed}, [&] { gpu::AtomicAdd(word.Ptr(), 1u); });
    EXPECT_TRUE(atomics.ok()) << atomics.ToString();
    const Report mixed = Launch({2, kWarpSize, 0, seed}, [&] {
      if (gpu::Lane() != 0) return;
      if (gpu::BlockIndex() == 0) {
        gpu::Load(word.Ptr());
      } else {
        gpu::AtomicAdd(word.Ptr(), 1u);
      }
    });
    EXPECT_TRUE(Found(mixed, FaultKind::kGlobalRace, "gpu::Load(word", "gpu::AtomicAdd(word") ||
                Found(mixed, FaultKind::kGlobalRace, "gpu::AtomicAdd(word", "gpu::Load(word"))
        << mixed.ToString();
  }
}

// A launch starts after all that went before it.
TEST(EmulatorOrdering, LaunchesFollowEachOther) {
  DeviceBuffer<float> data(1);
  for (int i = 0; i < 3; ++i) {
    const Report report = Launch({1, kWarpSize}, [&] {
      if (gpu::Lane() == i) gpu::Store(data.Ptr(), 0, 1.0f);
    });
    EXPECT_TRUE(report.ok()) << report.ToString();
  }
}

TEST(EmulatorOrdering, CountersWrap) {
  DeviceBuffer<unsigned> counter(std::vector<unsigned>{0});
  DeviceBuffer<int> sum(std::vector<int>{-5});
  const Report report = Launch({1, kWarpSize}, [&] {
    gpu::AtomicIncrementWrap(counter.Ptr(), 4);
    gpu::AtomicAdd(sum.Ptr(), -2);
  });
  EXPECT_TRUE(report.ok()) << report.ToString();
  EXPECT_EQ(counter[0], static_cast<unsigned>(kWarpSize % 5));
  EXPECT_EQ(sum[0], -5 - 2 * kWarpSize);
}

}  // namespace
}  // namespace lean_attention::emulator
