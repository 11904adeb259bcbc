"""Names of kernels as NCCL, DeepEP, cuBLAS, CUTLASS, FlashAttention, rocBLAS, Triton and torch spell them."""

import pytest

from stagescope.ingest.annotations.kernel_categories import (
    NOTIFY,
    Category,
    collective_operation,
    kernel_category,
)


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_gather"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(...)", "reduce_scatter"),
        ("ncclDevKernel_AllReduce_Sum_f32_TREE_LL(...)", "all_reduce"),
        ("ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclWorkElem)", "broadcast"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL(...)", "reduce"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", None),
        ("void deep_ep::internode::dispatch<false, 8, true, 8>(int4*)", "dispatch"),
        ("void dpsk::ep::internode::combine<false, 8, __nv_bfloat16>(int4*)", "combine"),
        ("void deep_ep::intranode::notify_dispatch<8>(int const*)", NOTIFY),
        ("void deep_ep::internode::cached_notify<false>(int)", NOTIFY),
        ("void deep_ep::internode_ll::combine<true>(void*)", "combine"),
    ],
)
def test_names_of_communication_state_their_operation(name, operation):
    assert kernel_category(name) == Category("communication", operation)


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "gemm"),
        ("nvjet_tst_128x256_64x4_2x1_v_bz_TNT", "gemm"),
        ("void cutlass::device_kernel<dpsk::grouped_gemm::cuda::fp8_ptp128c::GemmKernel>(...)", "gemm"),
        ("Cijk_Ailk_Bljk_BBS_BH_MT128x128x32", "gemm"),
        ("void flash::compute_attn_ws<Flash_fwd_kernel_traits<192, 128>>", "attention"),
        ("fmha_cutlassF_bf16_aligned_64x128_rf_sm80(...)", "attention"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>", "elementwise"),
        ("triton_poi_fused_add_mul_0", "elementwise"),
        ("Memcpy DtoD (Device -> Device)", "memcpy"),
        ("Memset (Device)", "memcpy"),
        ("void layer_norm::ln_fwd_kernel<...>", "other"),
        ("void deep_ep::internode::get_dispatch_layout<256, 32, 8>(long const*)", "other"),
        ("my_kernel", "other"),
    ],
)
def test_names_of_other_kernels_state_their_category(name, category):
    assert kernel_category(name) == Category(category)


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("_allgather_base", "all_gather"),
        ("_reduce_scatter_base", "reduce_scatter"),
        ("allreduce_coalesced", "all_reduce"),
        ("all_to_allv", "all_to_all"),
        ("alltoall_base", "all_to_all"),
        ("recv", "send_recv"),
        ("barrier", None),
        (None, None),
    ],
)
def test_arguments_state_the_operation_in_torchs_words(name, operation):
    assert collective_operation(name) == operation
