// machine.cpp: fibers take turns; copies and stores land between them.
#include "machine.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

// Leave the registers that a function must keep on this stack and go on with another (x86-64, System V).
extern "C" void emulator_switch(void** from, void* to);
asm(R"(
.text
.globl emulator_switch
emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");

namespace emulator {

Machine machine;

namespace {

// Odd in cache lines: tops of stacks at a power of two from each other would share a few sets of a cache.
constexpr size_t kStackBytes = 128 * 1024 + 65 * 64;
constexpr int64_t kPatience = 2000000;  // of the clock, while nobody could run
constexpr int64_t kHurry = 20;          // of the clock a turn, once all have looked in vain and nothing is on its way
const std::function<void()>* body;
void* scheduler;

void fiber_main() {
  (*body)();
  Fiber& self = *machine.current;
  machine.finish_reads();
  self.is_done = true;
  Warp& warp = self.block->warps[self.warp];
  if (--warp.live > 0 && warp.barrier.arrived == unsigned(warp.live)) {
    warp.barrier.arrived = 0, warp.barrier.generation++;
  }
  emulator_switch(&self.stack_pointer, scheduler);
  std::abort();
}

}  // namespace

// Every kernel's library has a machine of its own: what stays in each would add up.
void Machine::free_grid() {
  blocks_.clear(), copies_.clear(), copiers_.clear(), stores_.clear();
  munmap(stacks_, stacks_bytes_);
  stacks_ = nullptr, stacks_bytes_ = 0;
  shared_ = {};
}

void Machine::make_grid() {
  const int count = int(grid.x * grid.y * grid.z), threads = int(block_shape.x * block_shape.y * block_shape.z);
  shared_.assign(size_t(count + 1) * kSharedBytes, std::byte{0xff});
  // Most of it is never touched: it may be more than there is.
  stacks_bytes_ = size_t(count) * threads * kStackBytes;
  void* const stacks =
      mmap(nullptr, stacks_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stacks == MAP_FAILED) {
    std::fprintf(stderr, "no memory for the stacks of %zu threads\n", size_t(count) * threads);
    std::abort();
  }
  stacks_ = static_cast<std::byte*>(stacks);
  skew_ = 1024 - reinterpret_cast<uintptr_t>(shared_.data()) % 1024;
  for (int b = 0; b < count; b++) {
    auto block = std::make_unique<Block>();
    block->index = {b % grid.x, b / grid.x % grid.y, b / grid.x / grid.y};
    block->rank = b % cluster_size;
    block->shared = shared_.data() + skew_ + size_t(b) * kSharedBytes;
    block->warps.resize((threads + 31) / 32);
    block->fibers.resize(threads);
    block->readers.assign(kSharedBytes / kPlaceBytes, 0);
    for (int t = 0; t < threads; t++) {
      Fiber& fiber = block->fibers[t];
      fiber.thread = {t % block_shape.x, t / block_shape.x % block_shape.y, t / block_shape.x / block_shape.y};
      fiber.block = block.get(), fiber.lane = t % 32, fiber.warp = t / 32;
      const auto stack_end = stacks_ + size_t(b * threads + t + 1) * kStackBytes;
      uintptr_t top = reinterpret_cast<uintptr_t>(stack_end) / 16 * 16 - 64;
      void** frame = reinterpret_cast<void**>(top);
      frame[6] = reinterpret_cast<void*>(&fiber_main);
      fiber.stack_pointer = frame;
      block->warps[t / 32].live++;
    }
    blocks_.push_back(std::move(block));
  }
  for (int b = 0; b < count; b++) blocks_[b]->cluster = blocks_[b / cluster_size * cluster_size].get();
}

std::string Machine::run(const std::function<void()>& kernel) {
  body = &kernel;
  fault_.clear();
  clock = 0;
  make_grid();
  lateness_ = 1u << random_() % 7;
  std::vector<std::pair<Block*, int>> live;
  size_t begun = 0;
  const auto begin = [&] {
    if (begun == blocks_.size()) return;
    Block& block = *blocks_[begun++];
    for (size_t warp = 0; warp < block.warps.size(); warp++) live.emplace_back(&block, int(warp));
  };
  for (size_t i = resident_ == 0 ? blocks_.size() : resident_; i > 0; i--) begin();
  int64_t idle = 0;
  while (!live.empty() && fault_.empty()) {
    const bool is_stuck = idle > int64_t(64 * live.size()) && !is_anything_on_its_way();
    const int64_t passed = is_stuck ? kHurry : 1;
    clock += passed;
    const size_t pick = random_() % live.size();
    auto [block, warp] = live[pick];
    idle = turn(*block, warp) ? 0 : idle + passed;
    if (block->warps[warp].live == 0) {
      live[pick] = live.back(), live.pop_back();
      if (std::ranges::all_of(block->warps, [](const Warp& each) { return each.live == 0; })) begin();
    }
    if (chance(lateness_) || idle > int64_t(2 * live.size())) land_some();
    if (idle > kPatience) fault_ = "nobody can run, and nothing is on its way";
  }
  while (fault_.empty() && is_anything_on_its_way()) land_some();
  current = nullptr;
  free_grid();
  return fault_;
}

// Let a warp's threads run, one after the other, until all wait, or some while. Returns whether any came further.
bool Machine::turn(Block& block, int warp) {
  bool has_moved = false;
  for (int pass = 1 + int(random_() % 32); pass > 0; pass--) {
    bool all_poll = true;
    const size_t first = size_t(warp) * 32, last = std::min(first + 32, block.fibers.size());
    for (size_t i = first; i < last; i++) {
      Fiber& fiber = block.fibers[i];
      if (fiber.is_done) continue;
      if (fiber.waits_on && *fiber.waits_on == fiber.waits_for) continue;
      fiber.waits_on = nullptr, fiber.polls = false;
      current = &fiber;
      emulator_switch(&scheduler, fiber.stack_pointer);
      if (!fault_.empty()) return true;
      all_poll = all_poll && fiber.polls;
    }
    if (all_poll) break;
    has_moved = true;
  }
  return has_moved;
}

void Machine::poll() {
  current->polls = true;
  yield();
}

void Machine::await_change(const void* word) {
  current->waits_on = static_cast<const unsigned*>(word), current->waits_for = *current->waits_on;
  poll();
}

void Machine::look(const void* from, unsigned value) {
  const std::pair seen{from, value};
  const bool is_again = std::ranges::find(current->seen, seen) != std::end(current->seen);
  current->seen[current->loads++ % std::size(current->seen)] = seen;
  if (is_again || current->loads % 64 == 0) poll();  // a loop may have more loads than are kept
}

void Machine::yield() {
  emulator_switch(&current->stack_pointer, scheduler);
}

void Machine::wait_for(Barrier& barrier, int expected) {
  const unsigned generation = barrier.generation;
  if (++barrier.arrived == unsigned(expected)) {
    barrier.arrived = 0, barrier.generation++;
    return;
  }
  current->waits_on = &barrier.generation, current->waits_for = generation;
  yield();
}

void Machine::fault(std::string why) {
  const Fiber& f = *current;
  fault_ = "block " + std::to_string(f.block->index.x) + ", thread " + std::to_string(f.thread.x) + ": " + why;
  emulator_switch(&current->stack_pointer, scheduler);
  std::abort();
}

Block& Machine::block_at(uint32_t address) {
  const int rank = int(address >> kRankShift);
  if (rank == 0) return *current->block;
  return *blocks_[current->block->cluster->index.x + rank - 1];  // clusters lie along x
}

std::byte* Machine::resolve_elsewhere(uint32_t address) {
  const uint32_t offset = address & ((1u << kRankShift) - 1);
  if (offset >= kSharedBytes) fault("shared address " + std::to_string(offset));
  return block_at(address).shared + offset;
}

void Machine::copy_async(std::function<void()> copy) {
  if (current->copies.empty()) copiers_.push_back(current);
  current->copies.push_back(std::move(copy));
  current->issued++;
}

// Some copies arrive, and some stores are seen, in any order but that of one thread's cp.async.
void Machine::land_some() {
  const size_t waiting = copies_.size() + copiers_.size() + stores_.size();
  for (size_t left = 1 + random_() % (waiting / 4 + 8); left > 0 && waiting > 0; left--) {
    if (!copies_.empty()) {
      std::swap(copies_[random_() % copies_.size()], copies_.back());
      const auto copy = std::move(copies_.back());
      copies_.pop_back();
      copy();
    }
    if (!copiers_.empty()) {
      std::swap(copiers_[random_() % copiers_.size()], copiers_.back());
      Fiber& fiber = *copiers_.back();
      std::exchange(fiber.copies[fiber.copies.size() - (fiber.issued - fiber.landed)], nullptr)();
      if (++fiber.landed == fiber.issued) fiber.copies.clear(), copiers_.pop_back();
    }
    if (!stores_.empty()) show(random_() % stores_.size());
  }
}

// Stores to one address are seen in their order.
void Machine::show(size_t index) {
  uint32_t* const to = stores_[index].to;
  for (size_t i = 0; i < stores_.size(); i++) {
    if (stores_[i].to != to) continue;
    *to = stores_[i].value;
    stores_.erase(stores_.begin() + long(i));
    return;
  }
}

void Machine::store_relaxed(uint32_t* to, uint32_t value) {
  stores_.push_back({current, to, value, false});
}

uint32_t Machine::load(const uint32_t* from) {
  uint32_t value = *from;
  for (const Store& store : stores_) {
    if (store.to == from && store.by == current) value = store.value;
  }
  return value;
}

void Machine::read_shared(uint32_t address) {
  const uint32_t place = address / kPlaceBytes;
  if (address >= kSharedBytes) return;  // another block's
  Fiber& self = *current;
  if (self.has_read.empty()) self.has_read.resize(kSharedBytes / kPlaceBytes);
  if (self.has_read[place]) return;
  self.has_read[place] = true;
  self.reads.push_back(place);
  self.block->readers[place]++;
}

void Machine::finish_reads_of(Fiber& fiber) {
  for (const uint32_t place : fiber.reads) fiber.has_read[place] = false, fiber.block->readers[place]--;
  fiber.reads.clear();
}

void Machine::finish_reads_of_warp() {
  std::vector<Fiber>& fibers = current->block->fibers;
  const size_t first = size_t(current->warp) * 32, last = std::min(first + 32, fibers.size());
  for (size_t i = first; i < last; i++) finish_reads_of(fibers[i]);
}

void Machine::check_copy(std::byte* to, size_t bytes) {
  const size_t at = size_t(to - shared_.data() - skew_), block = at / kSharedBytes;
  if (at % kSharedBytes + bytes > kSharedBytes) fault("a copy past the end of shared memory");
  for (size_t place = at % kSharedBytes / kPlaceBytes; place * kPlaceBytes < at % kSharedBytes + bytes; place++) {
    if (blocks_[block]->readers[place] == 0) continue;
    const auto is_reader = [place](const Fiber& fiber) { return !fiber.has_read.empty() && fiber.has_read[place]; };
    const Fiber& reader = *std::ranges::find_if(blocks_[block]->fibers, is_reader);
    fault("a copy to " + std::to_string(place * kPlaceBytes) + ", where a load of thread " +
          std::to_string(reader.thread.x) + " may still be on its way");
  }
}

void Machine::order_stores() {
  for (Store& store : stores_) store.is_ordered |= store.by == current;
}

void Machine::release() {
  for (size_t i = 0; i < stores_.size();) {
    const Store& store = stores_[i];
    if (store.by == current || (store.is_ordered && store.by->block == current->block)) {
      *store.to = store.value;
      stores_.erase(stores_.begin() + long(i));
    } else {
      i++;
    }
  }
}

}  // namespace emulator
