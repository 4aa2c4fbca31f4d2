// Each kind of fault in the smallest kernel that has it, and its nearest neighbour that has not.

#include <gtest/gtest.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tests/cpp/emulator_checks.h"

namespace lean_attention::emulator {
namespace {

using gpu::kWarpSize;
using Float4 = gpu::Vec<float, 4>;

constexpr uint64_t kSeeds = 20;

SharedPtr<float> SharedFloats() { return gpu::As<float>(gpu::SharedMemory()); }

TEST(EmulatorFaults, MemoryStartsAsNaN) {
  DeviceBuffer<float> y(2);
  EXPECT_NE(y[0], y[0]);
  const Report report = Launch({1, kWarpSize, 8}, [&] {
    if (gpu::Lane() == 0) gpu::Store(y.Ptr(), 1, gpu::Load(SharedFloats(), 1));
  });
  EXPECT_TRUE(report.ok()) << report.ToString();
  EXPECT_NE(y[1], y[1]);
}

TEST(EmulatorFaults, BoundsOfGlobalMemory) {
  const DeviceBuffer<float> x(10);
  DeviceBuffer<float> y(10);
  const auto load = [&](int64_t i) { return Launch({}, [&] { gpu::Load(x.ConstPtr(), i); }); };
  EXPECT_TRUE(load(0).ok());
  EXPECT_TRUE(load(9).ok());
  EXPECT_TRUE(Found(load(10), FaultKind::kOutOfBounds, "gpu::Load(x.ConstPtr(), i)"));
  EXPECT_TRUE(Found(load(-1), FaultKind::kOutOfBounds, "gpu::Load(x.ConstPtr(), i)"));
  EXPECT_TRUE(Found(load(int64_t{1} << 40), FaultKind::kOutOfBounds, "gpu::Load(x.ConstPtr(), i)"));

  // The last whole vector, and one that sticks out.
  const auto load4 = [&](int64_t i) {
    return Launch({}, [&] { gpu::Load(gpu::As<Float4>(x.ConstPtr()), i); });
  };
  EXPECT_TRUE(load4(1).ok());
  EXPECT_TRUE(Found(load4(2), FaultKind::kOutOfBounds, "gpu::As<Float4>(x.ConstPtr())"));

  // What lies beyond the end is nobody's, even where another buffer follows.
  const Report neighbour = Launch({}, [&] {
    if (gpu::Lane() == 0) gpu::Store(y.Ptr() + 10, 0, 1.0f);
  });
  EXPECT_TRUE(Found(neighbour, FaultKind::kOutOfBounds, "y.Ptr() + 10"));
  const Report null = Launch({}, [&] { gpu::Load(GlobalPtr<float>(nullptr)); });
  EXPECT_TRUE(Found(null, FaultKind::kOutOfBounds, "nullptr"));
}

TEST(EmulatorFaults, BoundsOfSharedMemory) {
  const auto store = [](int64_t i) {
    return Launch({1, kWarpSize, 10}, [=] {
      if (gpu::Lane() == 1) gpu::Store(gpu::SharedMemory(), i, std::byte{});
    });
  };
  EXPECT_TRUE(store(0).ok());
  EXPECT_TRUE(store(9).ok());
  EXPECT_TRUE(Found(store(10), FaultKind::kOutOfBounds, "gpu::Store(gpu::SharedMemory()"));
  EXPECT_TRUE(Found(store(-1), FaultKind::kOutOfBounds, "gpu::Store(gpu::SharedMemory()"));
}

TEST(EmulatorFaults, Alignment) {
  const DeviceBuffer<float> x(64);
  const auto load = [&](int floats) {
    return Launch({1, kWarpSize, 256}, [&, floats] {
      gpu::Load(gpu::As<Float4>(x.ConstPtr() + floats));
      gpu::Load(gpu::As<Float4>(SharedFloats() + 2 * floats));
    });
  };
  EXPECT_TRUE(load(4).ok());
  EXPECT_TRUE(Found(load(1), FaultKind::kMisaligned, "x.ConstPtr() + floats"));
  const Report shared =
      Launch({1, kWarpSize, 256}, [] { gpu::Load(gpu::As<Float4>(SharedFloats() + 2)); });
  EXPECT_TRUE(Found(shared, FaultKind::kMisaligned, "SharedFloats() + 2"));
  const Report copy = Launch({1, kWarpSize, 256}, [&] {
    gpu::CopyAsync16(gpu::SharedMemory() + 8, gpu::As<const std::byte>(x.ConstPtr()));
  });
  EXPECT_TRUE(Found(copy, FaultKind::kMisaligned, "gpu::SharedMemory() + 8"));
}

template <typename Pointer, typename = void>
constexpr bool kCanStore = false;
template <typename Pointer>
constexpr bool kCanStore<
    Pointer, std::void_t<decltype(gpu::Store(std::declval<Pointer>(), 0, std::declval<float>()))>> =
    true;

TEST(EmulatorFaults, ConstMemory) {
  static_assert(kCanStore<GlobalPtr<float>> && !kCanStore<GlobalPtr<const float>>);
  static_assert(kCanStore<SharedPtr<float>> && !kCanStore<SharedPtr<const float>>);
  static_assert(std::is_convertible_v<GlobalPtr<float>, GlobalPtr<const float>>);
  static_assert(!std::is_convertible_v<GlobalPtr<const float>, GlobalPtr<float>>);
  static_assert(
      std::is_same_v<decltype(gpu::As<int>(GlobalPtr<const float>())), GlobalPtr<const int>>);
  DeviceBuffer<float> x(4);
  const auto store = [&] {
    return Launch({}, [&] {
      if (gpu::Lane() == 0) gpu::Store(x.Ptr(), 0, 1.0f);
    });
  };
  EXPECT_TRUE(store().ok());
  x.Freeze();
  EXPECT_TRUE(Found(store(), FaultKind::kReadOnly, "gpu::Store(x.Ptr(), 0, 1.0f)"));
}

// The bytes of a word are no one's neighbours: threads may write them side by side.
TEST(EmulatorFaults, BytesOfOneWord) {
  DeviceBuffer<int8_t> y(kWarpSize);
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const Report apart = Launch({1, kWarpSize, kWarpSize, seed}, [&] {
      gpu::Store(gpu::SharedMemory(), gpu::Lane(), std::byte{1});
      gpu::Store(y.Ptr(), gpu::Lane(), int8_t{1});
    });
    EXPECT_TRUE(apart.ok()) << apart.ToString();
    const Report together = Launch({1, kWarpSize, kWarpSize, seed},
                                   [&] { gpu::Store(y.Ptr(), gpu::Lane() / 2, int8_t{1}); });
    EXPECT_TRUE(Found(together, FaultKind::kGlobalRace, "gpu::Lane() / 2", "gpu::Lane() / 2"));
  }
}

// A write is held against every reader, not only the last one. Shuffles and atomics without fences
// settle who comes first, and order nothing.
TEST(EmulatorFaults, EveryReaderCounts) {
  const Report lane = Launch({1, kWarpSize, 4}, [] {
    if (gpu::Lane() == 1) gpu::Load(SharedFloats());  // another lane
    gpu::ShuffleFrom(0, 0);
    if (gpu::Lane() == 0) gpu::Load(SharedFloats());
    if (gpu::Lane() == 0) gpu::Store(SharedFloats(), 0, 1.0f);
  });
  EXPECT_TRUE(Found(lane, FaultKind::kSharedRace, "gpu::Store(", "// another lane"));

  // Of the other warp's two readers one is the writer, and its own warp has read in between.
  for (const int writer : {0, kWarpSize}) {
    DeviceBuffer<unsigned> flag(std::vector<unsigned>{0});
    const Report warp = Launch({1, 2 * kWarpSize, 4}, [&, writer] {
      if (gpu::Warp() == 1) {
        if (gpu::Lane() < 2) gpu::Load(SharedFloats());  // warp 1
        gpu::SyncWarp();
        if (gpu::Lane() == 0) gpu::AtomicAdd(flag.Ptr(), 1u);
      } else {
        while (gpu::AtomicAdd(flag.Ptr(), 0u) == 0) {
        }
        gpu::SyncWarp();
        if (gpu::Lane() < 2) gpu::Load(SharedFloats());  // warp 0
        gpu::SyncWarp();
        if (gpu::Lane() == 0) gpu::AtomicAdd(flag.Ptr(), 1u);
      }
      while (gpu::AtomicAdd(flag.Ptr(), 0u) != 2) {
      }
      if (gpu::ThreadIndex() == writer) gpu::Store(SharedFloats(), 0, 1.0f);
    });
    EXPECT_TRUE(Found(warp, FaultKind::kSharedRace, "gpu::Store(",
                      writer == 0 ? "// warp 1" : "// warp 0"));
  }

  // A barrier is enough for all of them.
  const Report sound = Launch({1, 2 * kWarpSize, 4}, [] {
    gpu::Load(SharedFloats());
    gpu::SyncThreads();
    if (gpu::ThreadIndex() == 0) gpu::Store(SharedFloats(), 0, 1.0f);
  });
  EXPECT_TRUE(sound.ok()) << sound.ToString();
}

// Shuffles bring lanes together, but order nothing.
TEST(EmulatorFaults, ShufflesAreNoBarriers) {
  const auto run = [](bool sync) {
    return Launch({1, kWarpSize, 4}, [=] {
      if (gpu::Lane() == 0) gpu::Store(SharedFloats(), 0, 1.0f);
      gpu::ShuffleFrom(0, 0);
      if (sync) gpu::SyncWarp();
      gpu::Load(SharedFloats());
    });
  };
  EXPECT_TRUE(run(true).ok());
  EXPECT_TRUE(Found(run(false), FaultKind::kSharedRace, "gpu::Load(SharedFloats())",
                    "gpu::Store(SharedFloats()"));
}

// One warp: lane 0 does one thing, and only then the others another.
template <typename First, typename Second>
Report InOrder(First first, Second second) {
  DeviceBuffer<unsigned> flag(std::vector<unsigned>{0});
  return Launch({1, kWarpSize}, [&] {
    if (gpu::Lane() == 0) {
      gpu::AtomicAdd(flag.Ptr(), 1u);  // the flag
      first();
    } else {
      while (gpu::AtomicAdd(flag.Ptr(), 0u) == 0) {  // the wait
      }
      second();
    }
  });
}

TEST(EmulatorFaults, Divergence) {
  const auto barrier = [] { gpu::SyncThreads(); };        // barrier
  const auto other_barrier = [] { gpu::SyncThreads(); };  // other
  const auto vote = [] { gpu::Any(true); };
  const auto other_vote = [] { gpu::Any(true); };  // other
  EXPECT_TRUE(Found(InOrder(barrier, other_barrier), FaultKind::kDivergence, "other", "barrier ="));
  EXPECT_TRUE(Found(InOrder(vote, other_vote), FaultKind::kDivergence, "other", "vote ="));
  EXPECT_TRUE(Found(InOrder(barrier, vote), FaultKind::kDivergence, "vote =", "barrier ="));
  EXPECT_TRUE(Found(InOrder(vote, barrier), FaultKind::kDivergence, "barrier =", "vote ="));
  EXPECT_TRUE(InOrder(barrier, barrier).ok());
  EXPECT_TRUE(InOrder(vote, vote).ok());
}

TEST(EmulatorFaults, EarlyExit) {
  const auto barrier = [] { gpu::SyncThreads(); };
  const auto vote = [] { gpu::Any(true); };
  const auto end = [] {};
  const std::string flag = "// the flag";  // the last that lane 0 does
  const std::string wait = "// the wait";  // the last that the others do
  EXPECT_TRUE(Found(InOrder(end, barrier), FaultKind::kEarlyExit, "barrier =", flag));
  EXPECT_TRUE(Found(InOrder(barrier, end), FaultKind::kEarlyExit, wait, "barrier ="));
  EXPECT_TRUE(Found(InOrder(end, vote), FaultKind::kEarlyExit, "vote =", flag));
  EXPECT_TRUE(Found(InOrder(vote, end), FaultKind::kEarlyExit, wait, "vote ="));
  EXPECT_TRUE(InOrder(end, end).ok());
}

// Whatever the order: in some of several blocks.
TEST(EmulatorFaults, DivergenceInAnyOrder) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const Report barriers = Launch({2, 2 * kWarpSize, 0, seed}, [] {
      if (gpu::Warp() == 0) {
        gpu::SyncThreads();  // warp 0
      } else {
        gpu::SyncThreads();  // warp 1
      }
    });
    EXPECT_TRUE(Found(barriers, FaultKind::kDivergence, "warp 0", "warp 1") ||
                Found(barriers, FaultKind::kDivergence, "warp 1", "warp 0"))
        << barriers.ToString();
    const Report shuffles = Launch({2, 2 * kWarpSize, 0, seed}, [] {
      if (gpu::Lane() % 2 == 0) {
        gpu::ShuffleXor(1, 2);  // even
      } else {
        gpu::ShuffleXor(1, 2);  // odd
      }
    });
    EXPECT_TRUE(Found(shuffles, FaultKind::kDivergence, "even", "odd") ||
                Found(shuffles, FaultKind::kDivergence, "odd", "even"))
        << shuffles.ToString();
  }
}

// A whole block may end early, and a whole warp where no barrier follows.
TEST(EmulatorFaults, SoundExits) {
  const Report report = Launch({4, 2 * kWarpSize}, [] {
    if (gpu::BlockIndex() % 2 == 0) return;
    gpu::SyncThreads();
    if (gpu::Warp() == 0) return;
    gpu::SyncWarp();
  });
  EXPECT_TRUE(report.ok()) << report.ToString();
}

// Lane i copies the i-th sixteen bytes.
class EmulatorCopies : public testing::Test {
 protected:
  static constexpr int kBytes = 16 * kWarpSize;

  void Copy(int valid) const {
    const SharedPtr<std::byte> to = gpu::SharedMemory() + 16 * gpu::Lane();
    const GlobalPtr<const std::byte> from = gpu::As<std::byte>(x_.ConstPtr()) + 16 * gpu::Lane();
    gpu::CopyAsync16(to, from, valid);
  }

  const std::string copy_ = "gpu::CopyAsync16(to, from, valid)";
  const DeviceBuffer<float> x_{std::vector<float>(4 * kWarpSize, 3.0f)};
};

TEST_F(EmulatorCopies, BytesPastTheValidOnesAreZero) {
  DeviceBuffer<Float4> y(kWarpSize);
  const Report report = Launch({1, kWarpSize, kBytes}, [&] {
    Copy(gpu::Lane() == 0 ? 8 : 16 * (gpu::Lane() % 2));
    gpu::CommitCopies();
    gpu::WaitCopies<0>();
    const auto copied = gpu::As<Float4>(gpu::SharedMemory());
    gpu::Store(y.Ptr(), gpu::Lane(), gpu::Load(copied, gpu::Lane()));
  });
  EXPECT_TRUE(report.ok()) << report.ToString();
  for (int i = 0; i < kWarpSize; ++i) {
    for (int j = 0; j < 4; ++j) {
      const bool valid = i == 0 ? j < 2 : i % 2 == 1;
      EXPECT_EQ(y[i][j], valid ? 3.0f : 0.0f) << i << " " << j;
    }
  }
}

TEST_F(EmulatorCopies, OnlyValidBytesAreRead) {
  const auto run = [&](int valid) {
    return Launch({1, kWarpSize, kBytes}, [&, valid] {
      const auto end = gpu::As<std::byte>(x_.ConstPtr() + x_.size());
      gpu::CopyAsync16(gpu::SharedMemory() + 16 * gpu::Lane(), end, valid);
      gpu::CommitCopies();
      gpu::WaitCopies<0>();
    });
  };
  EXPECT_TRUE(run(0).ok());
  EXPECT_TRUE(Found(run(4), FaultKind::kOutOfBounds, "end, valid"));
  EXPECT_TRUE(Found(run(17), FaultKind::kBadArgument, "end, valid"));
}

TEST_F(EmulatorCopies, AreWaitedFor) {
  const Report never = Launch({1, kWarpSize, kBytes}, [&] {
    Copy(16);
    gpu::CommitCopies();
    gpu::SyncWarp();
  });
  EXPECT_TRUE(Found(never, FaultKind::kNotWaited, copy_));
  // The wait is for groups, and this one is still open.
  const Report uncommitted = Launch({1, kWarpSize, kBytes}, [&] {
    Copy(16);
    gpu::WaitCopies<0>();
  });
  EXPECT_TRUE(Found(uncommitted, FaultKind::kNotWaited, copy_));
  const Report twice = Launch({1, kWarpSize, kBytes}, [&] {
    Copy(16);
    gpu::CommitCopies();
    Copy(16);
  });
  EXPECT_TRUE(Found(twice, FaultKind::kNotWaited, copy_, copy_));
}

// A wait is the thread's own: its neighbour needs a barrier, even though it waited as well.
TEST_F(EmulatorCopies, OthersNeedABarrier) {
  const auto run = [&](uint64_t seed, bool sync) {
    return Launch({1, kWarpSize, kBytes, seed}, [&, sync] {
      Copy(16);
      gpu::CommitCopies();
      gpu::WaitCopies<0>();
      if (sync) gpu::SyncWarp();
      gpu::Load(gpu::SharedMemory(), 16 * (gpu::Lane() ^ 1));
    });
  };
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    EXPECT_TRUE(run(seed, true).ok());
    const Report report = run(seed, false);
    EXPECT_TRUE(Found(report, FaultKind::kSharedRace, "gpu::Lane() ^ 1", copy_) ||
                Found(report, FaultKind::kSharedRace, copy_, "gpu::Lane() ^ 1") ||
                Found(report, FaultKind::kNotWaited, "gpu::Lane() ^ 1", copy_))
        << report.ToString();
  }
}

TEST(EmulatorFaults, BadArguments) {
  const Report shuffle = Launch({}, [] { gpu::ShuffleFrom(1, kWarpSize); });
  EXPECT_TRUE(Found(shuffle, FaultKind::kBadArgument, "gpu::ShuffleFrom(1, kWarpSize)"));
  const auto uniform = [](int64_t value) {
    return Launch({1, kWarpSize}, [=] { gpu::Uniform(gpu::Lane() == kWarpSize - 1 ? value : 7); });
  };
  EXPECT_TRUE(Found(uniform(8), FaultKind::kBadArgument, "gpu::Uniform("));
  EXPECT_TRUE(uniform(7).ok());
  EXPECT_THROW(Launch({0, kWarpSize}, [] {}), std::invalid_argument);
  EXPECT_THROW(Launch({1, kWarpSize / 2}, [] {}), std::invalid_argument);
  EXPECT_THROW(Launch({1, 2048}, [] {}), std::invalid_argument);
}

TEST(EmulatorFaults, SpinningAndThrowing) {
  DeviceBuffer<unsigned> flag(std::vector<unsigned>{0});
  const Report spins = Launch({}, [&] {
    if (gpu::Lane() != 0) return;
    while (gpu::AtomicAdd(flag.Ptr(), 0u) == 0) {
    }
  });
  EXPECT_TRUE(Found(spins, FaultKind::kTooLong, "while (gpu::AtomicAdd"));
  const Report throws = Launch({}, [] {
    gpu::SyncWarp();  // before it throws
    throw std::runtime_error("no");
  });
  EXPECT_TRUE(Found(throws, FaultKind::kException, "before it throws"));
}

// A fault unwinds every thread that has begun: what they own is freed.
TEST(EmulatorFaults, NothingIsLeftBehind) {
  struct Counted {
    explicit Counted(int* count) : count(count) { ++*count; }
    ~Counted() { --*count; }
    int* count;
  };
  int alive = 0;
  const Report report = Launch({4, 2 * kWarpSize, 4}, [&] {
    const Counted counted(&alive);
    gpu::SyncWarp();
    if (gpu::ThreadIndex() == 40) gpu::Load(SharedFloats(), 1);
    gpu::SyncThreads();
  });
  EXPECT_TRUE(Found(report, FaultKind::kOutOfBounds, "gpu::Load(SharedFloats(), 1)"));
  EXPECT_EQ(alive, 0);
}

// The same seed, the same interleaving; other seeds, others.
TEST(EmulatorFaults, SeedsDrawTheOrder) {
  const auto order = [](uint64_t seed) {
    std::vector<int> blocks;
    DeviceBuffer<int> counter(std::vector<int>{0});
    const Report report = Launch({12, kWarpSize, 0, seed, 12}, [&] {
      if (gpu::Lane() != 0) return;
      gpu::AtomicAdd(counter.Ptr(), 1);
      blocks.push_back(gpu::BlockIndex());
    });
    EXPECT_TRUE(report.ok()) << report.ToString();
    return blocks;
  };
  EXPECT_EQ(order(1), order(1));
  EXPECT_NE(order(1), order(2));
}

TEST(EmulatorFaults, AReportIsOneLine) {
  const Report report = Launch({3, kWarpSize, 4, 0, 1}, [] {
    if (gpu::BlockIndex() == 2 && gpu::Lane() == 5) gpu::Load(SharedFloats(), 1);
  });
  ASSERT_EQ(report.faults.size(), 1u);
  const std::string line = std::to_string(report.faults[0].here.place.line);
  EXPECT_EQ(report.ToString(),
            "read of 4 bytes at byte 4 of shared memory, which has 4: block 2 thread 5 at " +
                std::string(__FILE__) + ":" + line + "\n");
}

}  // namespace
}  // namespace lean_attention::emulator
