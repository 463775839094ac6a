"""The page of systems as data: for each the model, the call and its published figures."""

import functools

from fluidq import catalog
from fluidq._systems_compute import (
    COMBINE,
    DEEPSEEK,
    DISPATCH,
    GIB,
    LAM,
    crossing,
    crossover,
    deepep,
    deepseek_income,
    deepseek_nodes,
    glm,
    grid,
    kappa,
    largest_sm_gain,
    mha,
    micro_batches,
    of_glm,
    plan_capacity,
    plan_rate,
    plan_ratio,
    recipe,
    sm,
    splitwise,
)
from fluidq._systems_figures import Figure, System
from fluidq.formulas import (
    aggregated,
    balance,
    fabric,
    memory,
    ranks,
    requests,
    rounding,
)

SYSTEMS = (
    System(
        "DistServe",
        "two pools in tandem, KV pulled from prefill GPUs; M/D/1 in front of prefill (D12, D24)",
        "fluidq size --ttft; fluidq.formulas.aggregated.ttft_pipelined, ttft_tensor; fluidq.kv.kv_bytes",
        (
            Figure(
                "KV of 512 tokens of OPT-66B", "GiB, printed as GB", 1.13, lambda: 512 * kappa("OPT-66B") / GIB, 0.005
            ),
            Figure(
                "link for 10 requests/s of it",
                "Gib/s, printed as Gb/s",
                90,
                lambda: 10 * 8 * 512 * kappa("OPT-66B") / GIB,
                0.005,
                note="96.6 Gb/s in decimal units",
            ),
            *(
                Figure(
                    f"load at which two-way tensor parallelism of speed-up {speedup:g} stops to be the faster one",
                    "offered load",
                    offered,
                    functools.partial(crossing, speedup),
                    2e-3,
                    primary=False,
                    note="published as a figure; the value is the theory's",
                )
                for speedup, offered in ((1.5, 0.936), (1.7, 1.257))
            ),
        ),
        "arXiv 2401.09670",
    ),
    System(
        "Splitwise",
        "two pools with costs, HBM-limited batch (D06, D07), and a mixed pool that joins the longer queue",
        "fluidq size --batch max --price; fluidq.sizing.size",
        (
            Figure(
                "prefill machines of 40, coding (grid of 5)",
                "machines",
                35,
                lambda: grid(splitwise(0.312, 27.88, 2130.4)),
                0.0,
                note="36.6 before the grid",
            ),
            Figure(
                "prefill machines of 40, conversation (grid of 5)",
                "machines",
                25,
                lambda: grid(splitwise(0.168, 211.1, 1226.5)),
                0.0,
                primary=False,
                note="22.7 before the grid; 20.2 at 0.9 of HBM",
            ),
        ),
        "arXiv 2311.18677, phase times of repository Mutinifni/splitwise-sim",
    ),
    System(
        "SARATHI",
        "mixed steps of one chunk and the decode batch; overlap bound (D23)",
        "fluidq size --compare --overlap; fluidq.topologies.Chunked; fluidq.formulas.aggregated.decode_maximal_ratio",
        (
            Figure(
                "times that later chunks load the first of 8",
                "loads",
                7,
                lambda: float(aggregated.chunk_loads(n_chunks=8.0) - aggregated.chunk_loads(n_chunks=7.0)) - 1,
                1e-9,
                note="the 8th chunk reads 7 before it",
            ),
        ),
        "arXiv 2308.16369, 2403.02310",
    ),
    System(
        "Bullet",
        "prefill and decode on shares of the SMs; compute is linear in them, bandwidth saturates (D23)",
        "fluidq size --compare --saturation; fluidq.topologies.Partitioned(share=None)",
        (
            Figure(
                "largest throughput gain, within 2 - saturation at a saturation of 0.4",
                "1",
                1.55,
                lambda: largest_sm_gain(0.4),
                0.0,
                primary=False,
                bound=True,
            ),
        ),
        "arXiv 2504.19516",
    ),
    System(
        "DuetServe",
        "temporal sharing that splits the SMs only where the token objective would be missed (D23)",
        "fluidq.topologies.Partitioned(hybrid=True); fluidq.formulas.aggregated.decode_sm_share",
        (
            Figure(
                "largest throughput gain, within 2 - saturation at a saturation of 0.4",
                "1",
                1.3,
                lambda: largest_sm_gain(0.4),
                0.0,
                primary=False,
                bound=True,
            ),
        ),
        "arXiv 2511.04791",
    ),
    System(
        "CUDA green contexts",
        "whole groups of SMs: rounding inside a GPU (D08, D10)",
        "fluidq.topologies.green_context; fluidq.formulas.rounding.sm_rounding_bound",
        (
            Figure("loss on H100, 132 SMs in groups of 8, rest idle", "1", 0.091, lambda: sm(132, 8), 0.002),
            Figure("loss on B200, 148 SMs in groups of 8, rest idle", "1", 0.081, lambda: sm(148, 8), 0.002),
            Figure("loss on H100 in groups of 16 (MuxWise)", "1", 0.152, lambda: sm(132, 16), 0.004),
        ),
        "CUDA driver API: groups of 8 SMs from compute capability 9.0; the losses follow from the SM counts",
    ),
    System(
        "DeepSeek-V3",
        "two pools of very coarse workers, 4 and 18 nodes (D01, D06, D08)",
        "fluidq.sizing.size on nodes; fluidq validate",
        (
            Figure("nodes in use over a day", "nodes", 226.75, deepseek_nodes, 1e-3),
            Figure("cost of the day", "USD", 87_072, lambda: 226.75 * 8 * 24 * 2.0, 1e-9),
            Figure("income of the day", "USD", 562_027, deepseek_income, 2e-3),
            Figure("prefill share of the nodes", "1", 0.421, lambda: float(balance.balance_ratio(**DEEPSEEK)), 1e-3),
        ),
        "repository deepseek-ai/open-infra-index, day 6",
    ),
    System(
        "DeepEP",
        "exchange between experts: one term of r_P and one of t_step, by kernel (D26)",
        "fluidq.rates.from_catalog; fluidq.formulas.ranks.dispatch_bandwidth, combine_bandwidth",
        tuple(
            Figure(
                f"{kind}, EP{width}",
                "GB/s",
                printed,
                functools.partial(deepep, formula, micros),
                0.025,
            )
            for kind, table, formula in (
                ("dispatch", DISPATCH, ranks.dispatch_bandwidth),
                ("combine", COMBINE, ranks.combine_bandwidth),
            )
            for width, (micros, printed) in table.items()
        ),
        "repository deepseek-ai/DeepEP, low-latency kernels",
    ),
    System(
        "dynamo",
        "a planner that keeps the balance: predictive lower bound and +-1 by load, one pending action (D17)",
        "fluidq.policies.dynamo; fluidq compare --policies dynamo; fluidq size --hit",
        (
            Figure(
                "prefill share of the GLM-5.2 recipe at 64K in, 400 out: 12 of 20 GPUs, without its cache hits",
                "1",
                0.60,
                lambda: recipe(0.0),
                0.0,
                primary=True,
                bound=True,
                note="at a 90 % hit rate balance is below 12/20, without hits above it",
            ),
            Figure(
                "1 - prefill share of that recipe, at its 90 % hit rate",
                "1",
                0.40,
                lambda: 1 - recipe(0.9),
                0.0,
                primary=True,
                bound=True,
            ),
        ),
        "repository ai-dynamo/dynamo, planner documents and GLM-5.2 recipe",
    ),
    System(
        "vLLM",
        "activations of prefill take KV memory from decode on aggregated GPUs (D22)",
        "fluidq size --compare --activations; fluidq.formulas.memory.batch_gain",
        (
            Figure(
                "KV after activations shrink from 15.8 to 5.7 GiB, from 48 GiB",
                "GiB",
                60,
                lambda: 48 * float(memory.batch_gain(kv_space=48 * GIB, freed=(15.8 - 5.7) * GIB)),
                0.04,
                note="activations explain 10.1 of the 12 GiB",
            ),
        ),
        "the article's author, measured with vLLM",
    ),
    System(
        "NIXL connector",
        "pull after prefill: KV is held on prefill until it is read, for the lease at most (D25)",
        "fluidq size (windows); fluidq.topologies.Windowed, windows",
        (
            Figure(
                "held in 1 s",
                "GB per prefill GPU",
                5.34,
                lambda: of_glm(memory.held_on_prefill, lease=1.0) / 1e9,
                1e-3,
            ),
            Figure(
                "held in a lease of 30 s",
                "GB per prefill GPU",
                160,
                lambda: of_glm(memory.held_on_prefill, lease=30.0) / 1e9,
                3e-3,
            ),
            Figure(
                "held in 480 s",
                "GB per prefill GPU",
                2565,
                lambda: of_glm(memory.held_on_prefill, lease=480.0) / 1e9,
                1e-3,
            ),
        ),
        "repository vllm-project/vllm, KV cache lease; figures of the article's author",
    ),
    System(
        "SGLang",
        "P/D planning by closed forms: M/M/1 prefill rate and rounded workers (D08, D24)",
        "fluidq size --ttft; fluidq.formulas.rounding.planned_prefill_rate",
        (
            Figure("prefill rate at a TTFT of 2 s", "tok/s", 25_000, plan_rate, 0.005, primary=False),
            Figure("prefill over decode instances", "1", 0.82, plan_ratio, 0.01, primary=False),
            Figure(
                "prefill instances for 5 M tokens a minute",
                "instances",
                3,
                lambda: round(LAM * 6144 / plan_rate()),
                0.0,
                primary=False,
                note="3.07: they round to nearest; a plan that holds the load needs 4",
            ),
            Figure(
                "decode instances",
                "instances",
                4,
                lambda: float(rounding.planned_decode_workers(lam=LAM, osl=512.0, rate=1700.0, g_D=1.0)),
                0.0,
                primary=False,
            ),
            Figure("capacity of 3P4D", "M tok/min", 4.8, lambda: plan_capacity(3, 4), 0.02, primary=False),
            Figure(
                "capacity of 3P3D",
                "M tok/min",
                3.6,
                lambda: plan_capacity(3, 3),
                0.11,
                primary=False,
                note="bound by decode, whose measured rate was below the plan's 1700 tok/s",
            ),
        ),
        "arXiv 2603.04716 (SGLang 0.5.8, eight H200)",
    ),
    System(
        "Mooncake",
        "KV moves by chunks while prefill runs; prefill keeps it until the prompt has landed (D25); fabric (D12)",
        "fluidq size --block; fluidq.topologies.Windowed with chunks; fluidq.formulas.memory.written_duplicate",
        (
            Figure(
                "network at which LLaMA-70B (15,325 tokens, 0.73 s on a node) stops gaining, 4.5 GB/s of prefix loads",
                "Gb/s",
                100,
                lambda: (15_325 * kappa("Llama-3.1-70B") / 0.73 + 4.5e9) * 8 / 1e9,
                0.10,
                note="the knee of a curve read at steps of 100 Gb/s",
            ),
            Figure(
                "kept over reserved, chunks without number",
                "1",
                4.68,
                lambda: of_glm(memory.duplication_ratio, nic=50e9, n_chunks=1e9),
                1e-3,
            ),
        ),
        "repository kvcache-ai/Mooncake, FAST'25 paper; D25 at the article's figures",
    ),
    System(
        "RDMA",
        "links that both pools share; moving against computing again (D12, D13)",
        "fluidq size --nic, --fabric, --link-efficiency; fluidq.formulas.transfer.crossover_nic",
        tuple(
            Figure(
                f"crossover, {words} at {mfu:.0%} of peak",
                "Gb/s",
                printed,
                functools.partial(crossover, billions, each, mfu),
                0.01,
                primary=False,
            )
            for words, billions, each, mfu, printed in (
                ("70B MHA", 70, mha(80, 8192), 0.5, 74),
                ("70B MHA", 70, mha(80, 8192), 0.75, 111),
                ("70B GQA 1/4", 70, mha(80, 8192) / 4, 0.5, 18.5),
                ("70B GQA 1/8", 70, mha(80, 8192) / 8, 0.5, 9.3),
                ("8B", 8, mha(32, 4096), 0.5, 130),
                ("8B", 8, mha(32, 4096), 0.75, 194),
                ("405B MHA", 405, mha(126, 16_384), 0.5, 40),
                ("405B MHA", 405, mha(126, 16_384), 0.75, 60),
            )
        ),
        "arXiv 2608.14967 (Lightstorm)",
    ),
    System(
        "B200",
        "the GPU of the example: roofline, HBM and the tokens above which a step is bound by arithmetic (D23)",
        "fluidq size --gpu B200; fluidq.catalog.gpu",
        (
            Figure("prefill roofline of GLM-5.2", "tok/s", 56_250, lambda: float(glm().r_P), 1e-9),
            Figure(
                "compute-bound above",
                "tok",
                281,
                lambda: float(
                    aggregated.compute_bound_tokens(
                        peak=catalog.gpu("B200").peaks["bf16"].value,
                        weight_bytes=2.0,
                        hbm_rate=catalog.gpu("B200").hbm_rate.value,
                    )
                ),
                2e-3,
            ),
        ),
        "supporting figures of the article's author",
    ),
    System(
        "GLM-5.2",
        "the model of the example: MLA with an indexer (D12, D32)",
        "fluidq size --model GLM-5.2; fluidq size --example; fluidq.kv.kv_bytes",
        (
            Figure(
                "KV per token, bf16, counted",
                "B",
                95_000,
                lambda: kappa("GLM-5.2"),
                3e-3,
                note="rounded by the article",
            ),
            Figure(
                "KV flow per prefill GPU",
                "GB/s",
                5.34,
                lambda: of_glm(fabric.transfer_flow, hit=0.0, hit_decode=0.0) / 1e9,
                1e-3,
            ),
            Figure(
                "margin on 400 Gb/s",
                "1",
                9.36,
                lambda: of_glm(fabric.fabric_margin, nic=50e9, hit=0.0, hit_decode=0.0),
                1e-3,
            ),
        ),
        "the article",
    ),
    System(
        "attention-FFN split",
        "a third pool in series: phi becomes a simplex; ping-pong micro-batches (D05, D28)",
        "fluidq.topologies.AttentionFFN; fluidq.formulas.stages.best_attention_ratio",
        (
            *(
                Figure(
                    f"micro-batches, transfer {hop:g} of the longer stage (MegaScale-Infer)",
                    "micro-batches",
                    printed,
                    functools.partial(micro_batches, hop),
                    0.0,
                    primary=False,
                )
                for hop, printed in ((0.25, 3), (0.5, 3), (0.75, 4), (1.0, 4))
            ),
            Figure(
                "Step-3 over DeepSeek-V3, tokens per GPU",
                "1",
                1.74,
                lambda: float(
                    requests.phase_price(cost=1.0, rate=2324.0) / requests.phase_price(cost=1.0, rate=4039.0)
                ),
                5e-3,
            ),
        ),
        "arXiv 2504.02263, 2507.19427, 2601.21351",
    ),
)
