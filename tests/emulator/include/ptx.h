// ptx.h: the PTX instructions of our kernels. translate.py names a function after its opcode; operands come
// as in the text.
#pragma once

#include <bit>

#include "cuda.h"
#include "cuda_bf16.h"
#include "device.h"
#include "f16.h"

namespace emulator {

// An mbarrier in its eight bytes.
struct Mbarrier {
  uint16_t expected, pending;
  int32_t bytes_and_phase;  // bytes that are announced and have not come (or the other way round) * 2 + parity

  uint32_t phase() const { return bytes_and_phase & 1; }
  void settle() {
    if (pending > 0 || bytes_and_phase >> 1 != 0) return;
    pending = expected, bytes_and_phase ^= 1;
  }
  void arrive(uint32_t count) {
    if (pending < count) machine.fault("an mbarrier of " + std::to_string(expected) + " has more arrivals");
    pending = uint16_t(pending - count);
    settle();
  }
  void expect(uint32_t bytes) { bytes_and_phase += int32_t(bytes) * 2; }
  void complete(uint32_t bytes) {
    bytes_and_phase -= int32_t(bytes) * 2;
    settle();
  }
};

inline Mbarrier& mbarrier(uint32_t address) {
  return machine.at<Mbarrier>(address);
}

template <class T>
T load_shared(uint32_t address) {
  machine.read_shared(address);
  return machine.at<T>(address);
}

// Copies run when nobody is current: they find their places beforehand.
inline void land_later(uint32_t to, uint32_t barrier, std::vector<std::byte> bytes) {
  std::byte* const place = machine.resolve(to);
  Mbarrier* const of = &mbarrier(barrier);
  machine.later([place, of, bytes = std::move(bytes)] {
    std::memcpy(place, bytes.data(), bytes.size());
    of->complete(uint32_t(bytes.size()));
  });
}

template <class... T>
void send_later(uint32_t to, uint32_t barrier, T... words) {
  const uint32_t all[] = {words...};
  std::vector<std::byte> bytes(sizeof(all));
  std::memcpy(bytes.data(), all, sizeof(all));
  land_later(to, barrier, std::move(bytes));
}

inline uint32_t swizzled(uint32_t address) {
  return address ^ ((address >> 7 & 7) << 4);
}

inline void land_box_later(std::byte* shared, uint32_t to, const void* map, int column, int row, Mbarrier* barrier) {
  const CUtensorMap& of = *static_cast<const CUtensorMap*>(map);
  if (to % 1024) machine.fault("a box goes to no multiple of 1,024");
  machine.check_copy(shared + to, size_t(of.box_rows) * 128);
  machine.later([=] {
    for (int r = 0; r < of.box_rows; r++) {
      for (int c = 0; c < of.box_columns; c++) {
        const bool is_inside = row + r >= 0 && row + r < of.rows && column + c >= 0 && column + c < of.columns;
        const int64_t element = (int64_t(row) + r) * of.columns + column + c;
        std::byte* const place = shared + swizzled(to + uint32_t(r) * 128 + uint32_t(c) * 2);
        std::memset(place, 0, 2);
        if (is_inside) std::memcpy(place, of.base + element * 2, 2);
      }
    }
    barrier->complete(uint32_t(of.box_rows * of.box_columns * 2));
  });
}

// A row of an operand of a warpgroup's MMA, 32 bytes along K.
template <class T>
constexpr int kRowElements = 32 / sizeof(T);
template <class T>
using OperandRow = std::array<float, kRowElements<T>>;

inline float to_float(__nv_bfloat16 value) {
  return __bfloat162float(value);
}
inline float to_float(E4m3 value) {
  return to_float(e4m3_to_f16(value.bits));
}

template <class T>
OperandRow<T> to_floats(const std::array<T, kRowElements<T>>& elements) {
  OperandRow<T> row;
  for (int k = 0; k < kRowElements<T>; k++) row[k] = to_float(elements[k]);
  return row;
}

// Row r of an operand in shared memory, K contiguous: the swizzle moves sixteen bytes at a time.
template <class T>
OperandRow<T> operand_row(uint64_t descriptor, int r) {
  const uint32_t start = (descriptor & 0x3fff) << 4, stride = (descriptor >> 32 & 0x3fff) << 4;
  const uint32_t row = start + r / 8 * stride + r % 8 * 128;
  std::array<T, kRowElements<T>> elements;
  std::memcpy(&elements[0], machine.resolve(swizzled(row)), 16);
  std::memcpy(&elements[kRowElements<T> / 2], machine.resolve(swizzled(row + 16)), 16);
  return to_floats<T>(elements);
}

// Sums of this lane's rows, l / 4 and l / 4 + 8 of its warp's 16: a(which of the two) times B, added or not.
template <int N, class T, class Rows>
void wgmma_later(float* sums, Rows a, uint64_t b, bool accumulates) {
  auto& groups = machine.current->wgmmas;
  if (groups.empty()) groups.emplace_back();
  groups.back().push_back([=] {
    const OperandRow<T> rows[] = {a(0), a(1)};
    for (int i = 0; i < N / 2; i += 4) {
      const int first = i * 2 + machine.current->lane % 4 * 2;
      const OperandRow<T> columns[] = {operand_row<T>(b, first), operand_row<T>(b, first + 1)};
      float tile[4] = {};
      for (int k = 0; k < kRowElements<T>; k++) {
        for (int each = 0; each < 4; each++) tile[each] += rows[each / 2][k] * columns[each % 2][k];
      }
      for (int each = 0; each < 4; each++) sums[i + each] = accumulates ? sums[i + each] + tile[each] : tile[each];
    }
  });
}
template <int N, class T>
void wgmma_later(float* sums, uint64_t a, uint64_t b, bool accumulates) {
  const int first = machine.current->warp % 4 * 16 + machine.current->lane / 4;
  wgmma_later<N, T>(sums, [=](int half) { return operand_row<T>(a, first + half * 8); }, b, accumulates);
}
// A in registers, a word of both rows, then of both 16 bytes on: lane l has their bytes from 4 (l % 4) on.
template <int N, class T>
void wgmma_later(float* sums, const std::array<uint32_t, 4>& a, uint64_t b, bool accumulates) {
  constexpr int kWord = 4 / sizeof(T);
  machine.finish_reads();  // A is in its registers
  std::array<std::array<T, kRowElements<T>>, 2> rows;
  for (int i = 0; i < 4; i++) {
    for (int other = 0; other < 4; other++) {
      const uint32_t word = __shfl_sync(~0u, a[i], machine.current->lane / 4 * 4 + other);
      std::memcpy(&rows[i % 2][(i / 2 * 4 + other) * kWord], &word, 4);
    }
  }
  wgmma_later<N, T>(sums, [=](int half) { return to_floats<T>(rows[half]); }, b, accumulates);
}

}  // namespace emulator

// Barriers, and what only hardware knows.
inline void ptx_barrier_cluster_arrive_aligned() {}
inline void ptx_barrier_cluster_wait_aligned() {
  using emulator::machine;
  const int threads = int(machine.block_shape.x) * machine.cluster_size;
  machine.order_stores();
  machine.wait_for(machine.current->block->cluster->cluster_barrier, threads);
}
inline void ptx_barrier_cluster_arrive_relaxed() {}
inline void ptx_barrier_cluster_arrive_release() {}
inline void ptx_barrier_cluster_wait_acquire() {
  ptx_barrier_cluster_wait_aligned();
}
inline void ptx_bar_sync(int barrier, int threads) {
  emulator::machine.finish_reads();
  emulator::machine.order_stores();
  emulator::machine.wait_for(emulator::machine.current->block->barriers[barrier], threads);
}
inline void ptx_setmaxnreg_inc_sync_aligned_u32(int) {}
inline void ptx_setmaxnreg_dec_sync_aligned_u32(int) {}
inline void ptx_fence_mbarrier_init_release_cluster() {}
inline void ptx_fence_proxy_async_shared__cta() {
  emulator::machine.finish_reads();
}
inline void ptx_fence_proxy_async() {
  emulator::machine.finish_reads();
}
inline void ptx_prefetch_tensormap(const void*) {}
inline void ptx_prefetch_global_L2(const void*) {}
inline void ptx_mov_u64(unsigned long long& now) {
  now = uint64_t(emulator::machine.clock);
}
inline void ptx_mov_u32(uint32_t& cluster_rank) {
  cluster_rank = uint32_t(emulator::machine.current->block->rank);
}
inline void ptx_mapa_shared__cluster_u32(uint32_t& there, uint32_t address, int rank) {
  there = (address & ((1u << emulator::kRankShift) - 1)) | uint32_t(rank + 1) << emulator::kRankShift;
}

// mbarriers.
inline void ptx_mbarrier_init_shared__cta_b64(uint32_t barrier, uint32_t arrivals) {
  emulator::mbarrier(barrier) = {uint16_t(arrivals), uint16_t(arrivals), 0};
}
inline void ptx_mbarrier_arrive_shared__cta_b64(uint32_t barrier, uint32_t count = 1) {
  emulator::machine.order_stores();
  emulator::mbarrier(barrier).arrive(count);
}
// mbarrier_arrive_after: a warp's loads before are done. Which word was passed is not looked at, and lanes that have
// run ahead of lane 0 may have begun to load from the next stage: this ends these loads, too.
inline void ptx_block_prmt_b32(uint32_t barrier, uint32_t, uint32_t count) {
  emulator::machine.finish_reads_of_warp();
  ptx_mbarrier_arrive_shared__cta_b64(barrier, count);
}
inline void ptx_mbarrier_arrive_shared__cluster_b64(uint32_t barrier) {
  ptx_mbarrier_arrive_shared__cta_b64(barrier);
}
inline void ptx_mbarrier_arrive_expect_tx_shared__cta_b64(uint32_t barrier, uint32_t bytes) {
  emulator::machine.order_stores();
  emulator::mbarrier(barrier).expect(bytes);
  emulator::mbarrier(barrier).arrive(1);
}
inline void ptx_cp_async_mbarrier_arrive_noinc_shared__cta_b64(uint32_t barrier) {
  emulator::Mbarrier* const of = &emulator::mbarrier(barrier);
  emulator::machine.copy_async([of] { of->arrive(1); });
}
inline void ptx_block_elect_sync(uint32_t& is_elected) {
  is_elected = emulator::machine.current->lane == 0;
}
inline void ptx_block_mbarrier_try_wait_parity_shared__cta_b64(uint32_t barrier, uint32_t parity) {
  emulator::Mbarrier& of = emulator::mbarrier(barrier);
  while (of.phase() == parity) emulator::machine.await_change(&of.bytes_and_phase);
}
[[noreturn]] inline void ptx_block_mov_u32(void* report, unsigned* counters, int what, int phase, unsigned seen) {
  const int found[4] = {what, int(blockIdx.x), phase, int(seen)};
  if (atomicExch(counters, 1u) == 0) std::memcpy(report, found, sizeof(found));
  emulator::machine.fault("trap");
}
inline void ptx_block_mbarrier_try_wait_parity_shared__cta_b64(uint32_t& is_over, uint32_t barrier, uint32_t parity) {
  is_over = emulator::mbarrier(barrier).phase() != parity;
}

// Copies.
inline void ptx_cp_async_cg_shared_global(uint32_t to, const void* from, uint32_t, uint32_t bytes) {
  std::byte* const place = emulator::machine.resolve(to);
  emulator::machine.copy_async([=] {
    std::memset(place, 0, 16);
    std::memcpy(place, from, bytes);
  });
}
inline void ptx_cp_async_cg_shared_global_L2__128B(uint32_t to, const void* from, uint32_t most, uint32_t bytes) {
  ptx_cp_async_cg_shared_global(to, from, most, bytes);
}
inline void ptx_cp_async_commit_group() {
  emulator::Fiber& self = *emulator::machine.current;
  self.groups.push_back(self.issued);
}
inline void ptx_cp_async_wait_group(size_t pending) {
  const emulator::Fiber& self = *emulator::machine.current;
  if (self.groups.size() <= pending) return;
  const unsigned first = self.groups[self.groups.size() - 1 - pending];
  while (self.landed < first) emulator::machine.await_change(&self.landed);
}
inline void ptx_cp_async_bulk_shared__cluster_global_mbarrier__complete_tx__bytes_L2__cache_hint(
    uint32_t to, const void* from, uint32_t bytes, uint32_t barrier, uint64_t) {
  if (to % 16 || reinterpret_cast<uintptr_t>(from) % 16 || bytes % 16) {
    emulator::machine.fault("a bulk copy from or to no multiple of 16");
  }
  std::byte* const place = emulator::machine.resolve(to);
  emulator::machine.check_copy(place, bytes);
  emulator::Mbarrier* const of = &emulator::mbarrier(barrier);
  emulator::machine.later([=] {
    std::memcpy(place, from, bytes);
    of->complete(bytes);
  });
}
inline void ptx_cp_async_bulk_tensor_2d_shared__cluster_global_tile_mbarrier__complete_tx__bytes_L2__cache_hint(
    uint32_t to, const void* map, int column, int row, uint32_t barrier, uint64_t) {
  emulator::land_box_later(emulator::machine.resolve(0), to, map, column, row, &emulator::mbarrier(barrier));
}
inline void
ptx_cp_async_bulk_tensor_2d_shared__cluster_global_tile_mbarrier__complete_tx__bytes_multicast__cluster_L2__cache_hint(
    uint32_t to, const void* map, int column, int row, uint32_t barrier, uint16_t ranks, uint64_t) {
  for (uint32_t rank = 0; rank < 16; rank++) {
    const uint32_t there = (rank + 1) << emulator::kRankShift;
    if (!(ranks >> rank & 1)) continue;
    emulator::land_box_later(emulator::machine.resolve(there), to, map, column, row,
                             &emulator::mbarrier(barrier | there));
  }
}
inline void ptx_st_async_shared__cluster_mbarrier__complete_tx__bytes_b32(uint32_t to, uint32_t a, uint32_t barrier) {
  emulator::send_later(to, barrier, a);
}
inline void ptx_st_async_shared__cluster_mbarrier__complete_tx__bytes_v2_b32(uint32_t to, uint32_t a, uint32_t b,
                                                                             uint32_t barrier) {
  emulator::send_later(to, barrier, a, b);
}
inline void ptx_st_async_shared__cluster_mbarrier__complete_tx__bytes_v4_b32(uint32_t to, uint32_t a, uint32_t b,
                                                                             uint32_t c, uint32_t d, uint32_t barrier) {
  emulator::send_later(to, barrier, a, b, c, d);
}
inline void ptx_st_async_weak_shared__cluster_mbarrier__complete_tx__bytes_v4_f32(uint32_t to, float a, float b,
                                                                                  float c, float d, uint32_t barrier) {
  emulator::send_later(to, barrier, std::bit_cast<uint32_t>(a), std::bit_cast<uint32_t>(b), std::bit_cast<uint32_t>(c),
                       std::bit_cast<uint32_t>(d));
}

// Loads, stores, atomics.
inline void ptx_ld_shared_f32(float& value, uint32_t from) {
  value = emulator::load_shared<float>(from);
}
inline void ptx_ld_shared_v2_f32(float& a, float& b, uint32_t from) {
  ptx_ld_shared_f32(a, from), ptx_ld_shared_f32(b, from + 4);
}
inline void ptx_ld_shared_v4_f32(float& a, float& b, float& c, float& d, uint32_t from) {
  ptx_ld_shared_v2_f32(a, b, from), ptx_ld_shared_v2_f32(c, d, from + 8);
}
inline void ptx_ld_shared_u16(uint16_t& value, uint32_t from) {
  value = emulator::load_shared<uint16_t>(from);
}
inline void ptx_ld_shared_u32(uint32_t& value, uint32_t from) {
  value = emulator::load_shared<uint32_t>(from);
}
inline void ptx_ld_shared_v2_u32(uint32_t& a, uint32_t& b, uint32_t from) {
  if (from % 8) emulator::machine.fault("a load of 8 bytes from no multiple of 8");
  ptx_ld_shared_u32(a, from), ptx_ld_shared_u32(b, from + 4);
}
inline void ptx_ld_shared_v4_u32(uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d, uint32_t from) {
  if (from % 16) emulator::machine.fault("a load of 16 bytes from no multiple of 16");
  ptx_ld_shared_v2_u32(a, b, from), ptx_ld_shared_v2_u32(c, d, from + 8);
}
inline void ptx_st_shared_u32(uint32_t to, uint32_t word) {
  emulator::machine.at<uint32_t>(to) = word;
}
inline void ptx_st_shared_v4_u32(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  if (to % 16) emulator::machine.fault("a store of 16 bytes to no multiple of 16");
  const uint32_t words[] = {a, b, c, d};
  for (uint32_t i = 0; i < 4; i++) ptx_st_shared_u32(to + i * 4, words[i]);
}
inline void ptx_ld_acquire_cta_shared__cta_u32(unsigned& value, uint32_t from) {
  value = emulator::machine.at<unsigned>(from);
  emulator::machine.look(&emulator::machine.at<unsigned>(from), value);
}
inline void ptx_st_release_cta_shared__cta_u32(uint32_t to, unsigned value) {
  emulator::machine.order_stores();
  emulator::machine.at<unsigned>(to) = value;
}
inline void ptx_ld_global_cg_v4_f32(float& a, float& b, float& c, float& d, const void* from) {
  const float* const values = static_cast<const float*>(from);
  a = values[0], b = values[1], c = values[2], d = values[3];
}
inline void ptx_ld_relaxed_gpu_global_u32(unsigned& value, const void* from) {
  value = emulator::machine.load(static_cast<const uint32_t*>(from));
  emulator::machine.look(from, value);
}
inline void ptx_ld_acquire_gpu_global_u32(unsigned& value, const void* from) {
  ptx_ld_relaxed_gpu_global_u32(value, from);
}
inline void ptx_block_ld_acquire_gpu_global_u32(const void* from, unsigned wanted) {
  while (emulator::machine.load(static_cast<const uint32_t*>(from)) < wanted) emulator::machine.poll();
}
inline void ptx_st_relaxed_gpu_global_u32(void* to, unsigned value) {
  emulator::machine.store_relaxed(static_cast<uint32_t*>(to), value);
}
inline void ptx_red_release_gpu_global_add_u32(unsigned* to, unsigned more) {
  emulator::machine.release();
  *to += more;
}
inline void ptx_red_relaxed_gpu_global_inc_u32(unsigned* to, unsigned most) {
  *to = *to >= most ? 0 : *to + 1;
}
inline void ptx_red_release_gpu_global_inc_u32(unsigned* to, unsigned most) {
  emulator::machine.release();
  ptx_red_relaxed_gpu_global_inc_u32(to, most);
}
inline void ptx_atom_acq_rel_gpu_global_add_u32(unsigned& before, unsigned* at, unsigned more) {
  emulator::machine.release();
  before = *at;
  *at += more;
}
inline void ptx_atom_acq_rel_gpu_global_inc_u32(unsigned& before, unsigned* at, unsigned most) {
  emulator::machine.release();
  before = *at;
  *at = before >= most ? 0 : before + 1;
}

// A warp's matrices.
inline void ptx_ldmatrix_sync_aligned_m8n8_x4_shared_b16(uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d,
                                                         uint32_t row) {
  const emulator::Shown rows = emulator::show_to_warp(row);
  uint32_t* const to[] = {&a, &b, &c, &d};
  const uint32_t lane = uint32_t(emulator::machine.current->lane);
  for (uint32_t i = 0; i < 4; i++) {
    *to[i] = emulator::load_shared<uint32_t>(uint32_t(rows.words[i * 8 + lane / 4][0]) + lane % 4 * 4);
  }
}
inline void ptx_ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d,
                                                               uint32_t row) {
  const emulator::Shown rows = emulator::show_to_warp(row);
  uint32_t* const to[] = {&a, &b, &c, &d};
  const uint32_t lane = uint32_t(emulator::machine.current->lane);
  const auto half = [&](uint32_t i, uint32_t r) {
    return uint32_t(emulator::load_shared<uint16_t>(uint32_t(rows.words[i * 8 + r][0]) + lane / 4 * 2));
  };
  for (uint32_t i = 0; i < 4; i++) *to[i] = half(i, lane % 4 * 2) | half(i, lane % 4 * 2 + 1) << 16;
}
// Matrix m goes to the rows whose addresses lanes 8 m to 8 m + 7 have.
template <size_t kMatrices>
void store_transposed(uint32_t row, const std::array<uint32_t, kMatrices>& words) {
  const emulator::Shown rows = emulator::show_to_warp(row);
  const uint32_t lane = uint32_t(emulator::machine.current->lane);
  for (uint32_t i = 0; i < 2 * kMatrices; i++) {
    const uint32_t to = uint32_t(rows.words[i / 2 * 8 + lane % 4 * 2 + i % 2][0]) + lane / 4 * 2;
    emulator::machine.at<uint16_t>(to) = uint16_t(words[i / 2] >> i % 2 * 16);
  }
}
inline void ptx_stmatrix_sync_aligned_m8n8_x4_trans_shared__cta_b16(uint32_t row, uint32_t a, uint32_t b, uint32_t c,
                                                                    uint32_t d) {
  store_transposed<4>(row, {a, b, c, d});
}
inline void ptx_stmatrix_sync_aligned_m8n8_x2_trans_shared__cta_b16(uint32_t row, uint32_t a, uint32_t b) {
  store_transposed<2>(row, {a, b});
}
inline void ptx_stmatrix_sync_aligned_m8n8_x1_trans_shared__cta_b16(uint32_t row, uint32_t a) {
  store_transposed<1>(row, {a});
}
inline void ptx_movmatrix_sync_aligned_m8n8_trans_b16(uint32_t& column, uint32_t row) {
  const emulator::Shown rows = emulator::show_to_warp(row);
  const uint32_t lane = uint32_t(emulator::machine.current->lane), from = lane / 4;  // the column that becomes a row
  const auto half = [&](uint32_t r) { return uint32_t(rows.words[r * 4 + from / 2][0]) >> (from % 2 * 16) & 0xffff; };
  column = half(lane % 4 * 2) | half(lane % 4 * 2 + 1) << 16;
}
template <class T>
void mma_16x8x16_of(float& c0, float& c1, float& c2, float& c3, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                    uint32_t b0, uint32_t b1) {
  const emulator::Shown all = emulator::show_to_warp(a0, a1, a2, a3, b0, b1);
  const int lane = emulator::machine.current->lane;
  const auto half = [](uint64_t word, int which) { return emulator::to_float(T{uint16_t(word >> (which * 16))}); };
  float sums[4] = {};
  for (int k = 0; k < 16; k++) {
    const uint64_t* const rows = all.words[lane / 4 * 4 + k % 8 / 2];
    const float a[] = {half(rows[k / 8 * 2], k % 2), half(rows[k / 8 * 2 + 1], k % 2)};
    for (int i = 0; i < 2; i++) {
      const float b = half(all.words[(lane % 4 * 2 + i) * 4 + k % 8 / 2][4 + k / 8], k % 2);
      sums[i] += a[0] * b, sums[2 + i] += a[1] * b;
    }
  }
  c0 += sums[0], c1 += sums[1], c2 += sums[2], c3 += sums[3];
}
inline void ptx_mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32(float& c0, float& c1, float& c2, float& c3,
                                                                    uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                                                    uint32_t b0, uint32_t b1, float, float, float,
                                                                    float) {
  mma_16x8x16_of<__nv_bfloat16>(c0, c1, c2, c3, a0, a1, a2, a3, b0, b1);
}
inline void ptx_mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32(float& c0, float& c1, float& c2, float& c3,
                                                                  uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                                                  uint32_t b0, uint32_t b1, float, float, float,
                                                                  float) {
  mma_16x8x16_of<emulator::F16>(c0, c1, c2, c3, a0, a1, a2, a3, b0, b1);
}

// A warpgroup's wgmmas, run when they are waited for.
inline void ptx_wgmma_fence_sync_aligned() {}
inline void ptx_wgmma_commit_group_sync_aligned() {
  auto& groups = emulator::machine.current->wgmmas;
  if (groups.empty()) groups.emplace_back();
  groups.emplace_back();
}
inline void ptx_wgmma_wait_group_sync_aligned(int pending) {
  auto& groups = emulator::machine.current->wgmmas;
  // The last group is still open.
  while (groups.size() > size_t(pending) + 1) {
    for (auto& wgmma : groups.front()) wgmma();
    groups.erase(groups.begin());
  }
}
template <int N, class T>
void ptx_wgmma(float& sums, uint64_t a, uint64_t b, int accumulates, int, int, int, int is_transposed) {
  if (is_transposed) emulator::machine.fault("a transposed operand is not emulated");
  emulator::wgmma_later<N, T>(&sums, a, b, accumulates);
}
template <int N, class T>
void ptx_wgmma(float& sums, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint64_t b, int accumulates, int, int,
               int is_transposed = 0) {
  if (is_transposed) emulator::machine.fault("a transposed operand is not emulated");
  emulator::wgmma_later<N, T>(&sums, {a0, a1, a2, a3}, b, accumulates);
}
