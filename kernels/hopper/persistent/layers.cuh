// layers.cuh: the phases of a decode step, in order: the only place where it is written.
//
// The formats of the layers' weights, the head's and the cache's come as -D options
// (wisp_runtime/ops/cuda/device/catalogue.py).
#pragma once

#include <type_traits>

#include "experts/expert_down.cuh"
#include "experts/expert_gate_up.cuh"
#include "experts/router.cuh"
#include "formats/bf16.cuh"
#include "formats/bf16_as_f16.cuh"
#include "formats/fp4.cuh"
#include "formats/fp4_fields.cuh"
#include "formats/fp8.cuh"
#include "formats/int4.cuh"
#include "formats/int8.cuh"
#include "phases/attention.cuh"
#include "phases/delta_projection.cuh"
#include "phases/delta_update.cuh"
#include "phases/embed.cuh"
#include "phases/epilogues.cuh"
#include "phases/kinds.cuh"
#include "phases/operands.cuh"

// By their names in manifest.toml (wisp_plan/quantization/packed_format.py).
namespace formats {
using bf16 = Bf16;
using fp8 = Fp8;
using fp8_block = Fp8Block;
using int8 = Int8;
using int4 = Int4<128>;
using int4_zero = Int4<128, true>;
using int4_g64 = Int4<64>;
using int4_g64_zero = Int4<64, true>;
using int4_g32 = Int4<32>;
using int4_g32_zero = Int4<32, true>;
using mxfp4 = Mxfp4;
using mxfp4_fields = Mxfp4Fields;  // of experts alone
using nvfp4 = Nvfp4;
}  // namespace formats

// By wisp_plan/kv_formats/.
namespace kv_formats {
using bf16 = PagedKv;
using fp8 = Fp8Kv;
}  // namespace kv_formats

#ifndef WISP_WEIGHT_FORMAT
#define WISP_WEIGHT_FORMAT bf16
#endif
#ifndef WISP_EXPERT_FORMAT  // of experts, of a mixture whose other weights have another
#define WISP_EXPERT_FORMAT WISP_WEIGHT_FORMAT
#endif
#ifndef WISP_HEAD_FORMAT
#define WISP_HEAD_FORMAT bf16
#endif
#ifndef WISP_KV_FORMAT
#define WISP_KV_FORMAT bf16
#endif

// b and a of Gated DeltaNet are bf16, whatever the other weights are.
template <class Activations>
using GatesFormat = std::conditional_t<std::is_same_v<Activations, Bf16Activations>, Bf16, Bf16AsF16>;

// A layer's mixer but its output GEMM: attention, or where layers differ one of two.
template <class Format>
using ProjectQkv = Gemm<Qkv, Format, StorePreRopeQkv>;
template <class Format, class Cache, class Activations, bool kDiffers>
struct MixerOf {
  using Project = ProjectQkv<Format>;
  using Mix = Attend<Cache, Activations>;
};
template <class Format, class Cache, class Activations>
struct MixerOf<Format, Cache, Activations, true> {
  using ProjectDelta = Both<FewRowsGemm<Gates, GatesFormat<Activations>, StorePolled<ProjectedGates>>,
                            Gemm<Qkvz, Format, StorePolled<ProjectedQkvz>>>;
  using Project = ByKind<ProjectQkv<Format>, ProjectDelta>;
  using Mix = ByKind<Attend<Cache, Activations>, UpdateStates<Activations>>;
};
template <class Format, class Cache>
using Mixer = MixerOf<Format, Cache, typename Format::Activations, (kPeriod > 1)>;

template <int N, class Format, class HeadFormat, class Cache, class Activations = typename Format::Activations>
using DenseLayer = Phases<typename Mixer<Format, Cache>::Project,            //
                          typename Mixer<Format, Cache>::Mix,                //
                          Gemm<Output, Format, AddToResidual<Activations>>,  //
                          Gemm<GateUp<gate_up_blocks(N)>, Format, SwiGlu<Activations>>,
                          Gemm<Down, Format, AddToResidual<Activations, typename HeadFormat::Activations>>>;

// A mixture of experts in place of the MLP, which may have a format of their own.
template <class Format, class HeadFormat, class Cache, class ExpertFormat = formats::WISP_EXPERT_FORMAT,
          class Activations = typename Format::Activations, class OfExperts = typename ExpertFormat::Activations>
using MoeLayer = Phases<typename Mixer<Format, Cache>::Project,          //
                        typename Mixer<Format, Cache>::Mix,              //
                        Gemm<Output, Format, AddToResidual<OfExperts>>,  //
                        Router<OfExperts>,                               //
                        ExpertGateUp<ExpertFormat, OfExperts>,           //
                        ExpertDown<ExpertFormat, AddToResidual<Activations, typename HeadFormat::Activations>>>;

template <int N, class Format, class HeadFormat, class Cache>
using ModelLayer =
    std::conditional_t<kHasExperts, MoeLayer<Format, HeadFormat, Cache>, DenseLayer<N, Format, HeadFormat, Cache>>;

template <int N, class Format, class HeadFormat = Bf16, class Cache = PagedKv>
using DecodeStep = Step<N, Phases<Embed<typename Format::Activations>>, ModelLayer<N, Format, HeadFormat, Cache>,
                        Phases<Gemm<Head, HeadFormat, StoreLogits>>>;
