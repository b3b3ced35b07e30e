// machine.h: a Hopper GPU in one thread of a CPU: grids of fibers, shared memory, barriers, and copies that come late.
//
// Every CUDA thread is a fiber that runs until it waits. A seed decides the order of fibers and the time at which a
// copy or a relaxed store lands: a kernel without a necessary wait fails under some seeds. There are no times and no
// caches: the clock counts switches of fibers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace emulator {

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
};

constexpr uint32_t kSharedBytes = 256 * 1024;  // of a block: what 18 bits can name
constexpr uint32_t kFixedBytes = 24 * 1024;    // of these, at the end, memory of a fixed size
constexpr uint32_t kPlaceBytes = 16;           // of shared memory, whose readers are counted
constexpr int kRankShift = 24;                 // mapa's addresses: rank + 1 above this bit

struct Block;

struct Fiber {
  bool is_done = false, polls = false;  // it looked in vain
  unsigned waits_for = 0;
  const unsigned* waits_on = nullptr;  // runs again when this differs from waits_for
  void* stack_pointer = nullptr;
  Dim3 thread;
  Block* block;
  int lane, warp;
  // Warpgroup MMAs that are issued and not run, in groups; the last is not committed yet.
  std::vector<std::vector<std::function<void()>>> wgmmas;
  std::vector<std::function<void()>> copies;  // cp.async, and what shall follow it; none after the last has landed
  unsigned issued = 0, landed = 0;            // copies, of all time
  std::vector<unsigned> groups;               // `issued` at each cp.async.commit_group
  std::pair<const void*, unsigned> seen[8];   // what it last loaded of what others write, in turns
  unsigned loads = 0;
  // Places in shared memory, of 16 bytes, that it has loaded from since its last fence or barrier: these loads may
  // still be on their way when the copy engine writes there.
  std::vector<uint32_t> reads;
  std::vector<bool> has_read;
};

struct Barrier {  // of bar.sync, of a warp, of a cluster
  unsigned generation = 0, arrived = 0;
};

struct Warp {
  Barrier barrier;
  int live = 0;
  uint64_t words[2][32][8];  // what lanes show each other, in turns
};

struct Block {
  Dim3 index;
  int rank;  // in its cluster
  Block* cluster;
  std::byte* shared;
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  Barrier barriers[16], cluster_barrier;  // the latter of rank 0 counts
  bool claims[2] = {};                    // of __syncthreads_or, in turns
  std::vector<uint16_t> readers;          // of each place in shared memory: threads whose `reads` have it
};

struct Store {  // relaxed, not yet seen by others
  Fiber* by;
  uint32_t* to;
  uint32_t value;
  bool is_ordered;  // a barrier of the block has passed: a release of any of its threads shows it
};

class Machine {
 public:
  Dim3 grid, block_shape;
  int cluster_size = 1;
  Fiber* current = nullptr;
  int64_t clock = 0;
  uint32_t fixed_bytes = 0;  // of all declarations of shared memory that a kernel has come to

  // The order of events; the upper half: how many blocks run at once, in order; 0: all.
  void seed(unsigned value) { random_.seed(value), resident_ = value >> 16; }
  // Run a grid to its end; returns why it did not come to one, or "".
  std::string run(const std::function<void()>& kernel);

  void yield();  // let others run
  void poll();   // the same, while waiting for a change
  // The same until a word is another: as polls, without running for each.
  void await_change(const void* word);
  void wait_for(Barrier& barrier, int expected);  // arrive, and wait for the others
  [[noreturn]] void fault(std::string why);
  bool chance(unsigned one_in) { return random_() % one_in == 0; }

  // An address of this block's shared memory, or of another's that mapa has named.
  std::byte* resolve(uint32_t address) {
    return address < kSharedBytes ? current->block->shared + address : resolve_elsewhere(address);
  }
  template <class T>
  T& at(uint32_t address) {
    return *reinterpret_cast<T*>(resolve(address));
  }
  Block& block_at(uint32_t address);

  void later(std::function<void()> copy) { copies_.push_back(std::move(copy)); }
  void copy_async(std::function<void()> copy);  // after those that this thread has asked for
  void store_relaxed(uint32_t* to, uint32_t value);
  uint32_t load(const uint32_t* from);          // with this thread's own stores
  void look(const void* from, unsigned value);  // a load of what others write: poll if it is one of a loop
  void read_shared(uint32_t address);
  void finish_reads() { finish_reads_of(*current); }  // a fence of the copy engine's, or a barrier of the block
  void finish_reads_of_warp();
  void check_copy(std::byte* to, size_t bytes);  // by the copy engine: what it writes over has been read
  void order_stores();                           // before a barrier of the block: a release after it publishes them
  void release();

 private:
  void make_grid();
  void free_grid();
  bool turn(Block& block, int warp);
  void finish_reads_of(Fiber& fiber);
  std::byte* resolve_elsewhere(uint32_t address);
  bool is_anything_on_its_way() const { return !(copies_.empty() && copiers_.empty() && stores_.empty()); }
  void land_some();
  void show(size_t index);

  std::mt19937 random_;
  std::string fault_;
  unsigned lateness_ = 1, resident_ = 0;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::vector<std::byte> shared_;
  size_t skew_ = 0;  // of the first block's shared memory in it
  std::byte* stacks_ = nullptr;
  size_t stacks_bytes_ = 0;
  std::vector<std::function<void()>> copies_;
  std::vector<Fiber*> copiers_;
  std::vector<Store> stores_;
};

extern Machine machine;

}  // namespace emulator
