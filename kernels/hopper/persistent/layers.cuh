// layers.cuh: the phases of a decode step, in order: the only place where it is written.
#pragma once

#include "formats/bf16.cuh"
#include "phases/attention.cuh"
#include "phases/embed.cuh"
#include "phases/epilogues.cuh"
#include "phases/operands.cuh"

template <class Format>
using DenseLayer = Phases<Gemm<Qkv, Format, StorePreRopeQkv>,   //
                          Attend<PagedKv>,                      //
                          Gemm<Output, Format, AddToResidual>,  //
                          Gemm<GateUp, Format, SwiGlu>,         //
                          Gemm<Down, Format, AddToResidual>>;

template <int N, class Layer>
using DecodeStep = Step<N, Phases<Embed>, Layer, Phases<Gemm<Head, Bf16, StoreLogits>>>;
