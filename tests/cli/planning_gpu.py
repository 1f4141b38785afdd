# SPDX-License-Identifier: Apache-2.0
"""`compact plan` for a GPU that is not here: bytes, time, launches, paths."""
import json
import re
import unittest

from _planning import BATCH, Plans


class GpuPlanning(Plans):
    def test_a_gpu_that_is_not_here(self):
        kept, text = self.plan("--preset=exact", "--device=cuda", "--dtype=bfloat16")
        self.assertEqual(kept["host_bytes"], 0)
        self.assertNotIn("  host ", text)
        moved, text = self.plan("--preset=exact", "--device=cuda", "--dtype=bfloat16",
                                "--set=slot layers.*.mlp.gate_up = offload")
        bytes_moved = moved["host_bytes"]
        self.assertGreater(bytes_moved, 0)
        self.assertLessEqual(bytes_moved, moved["host_pinned_bytes"])
        self.assertLess(moved["peak_bytes"], kept["peak_bytes"] - bytes_moved // 2)
        self.assertEqual(moved["saved_bytes"], kept["saved_bytes"])
        self.assertRegex(text, r"(?m)^  host .*pinned in powers of two")
        same, text = self.plan("--preset=exact", "--device=cuda", "--dtype=bfloat16",
                               "--deterministic=true")
        self.assertGreaterEqual(same["peak_bytes"], kept["peak_bytes"])
        self.assertEqual(same["deterministic_bytes"],
                         same["reserved_bytes"] - kept["reserved_bytes"])
        self.assertIn("--deterministic takes", text)
        message, _ = self.plan("--preset=exact", "--set=slot layers.*.mlp.gate_up = "
                               "offload+quantize:bits=4", code=2)
        self.assertIn("`offload` must be the last", message)

    def test_a_gpu_by_name(self):
        flags = ["--preset=gact-l1", "--device=cuda", "--dtype=bfloat16"]
        fast, text = self.plan(*flags, "--gpu=H200")
        self.assertEqual(fast["gpu"]["name"], "h200")
        self.assertEqual(fast["gpu"]["memory_bytes"], 142747 << 20)  # less 1 GiB for driver and context
        self.assertTrue(fast["gpu"]["step_fits"])
        self.assertRegex(text, r"(?m)^gpu +H200: a step takes \S+ \S+ of 139.4 GiB that the driver "
                               r"and a context leave of 143771 MiB$")
        self.assertIn("speed: H200, 65 % of 989 TFLOP/s in bf16, 85 % of 4800 GB/s", text)
        self.assertIn("; not what launching takes", text)
        parts = {p["name"]: p for p in fast["time"]["parts"]}
        self.assertEqual(list(parts),
                         ["products", "other layers", "codecs", "loss", "optimizer"])
        for part in parts.values():
            self.assertGreater(part["seconds"], 0, part)
        self.assertAlmostEqual(sum(p["seconds"] for p in parts.values()),
                               fast["time"]["seconds"], places=12)
        slow, _ = self.plan(*flags, "--gpu=4090")
        self.assertGreater(slow["time"]["seconds"], fast["time"]["seconds"])
        self.assertEqual([p["bytes"] for p in slow["time"]["parts"]],
                         [p["bytes"] for p in fast["time"]["parts"]])
        stated, text = self.plan(*flags, "--gpu=h200", "--device_tflops=1", "--device_gbps=2")
        self.assertIn("H200, 1 TFLOP/s in bf16 as stated, 2 GB/s as stated", text)
        self.assertGreater(stated["time"]["seconds"], 100 * fast["time"]["seconds"])
        shape = ["--model=llama-350m", "--block_size=256", BATCH + "128", "--dtype=bfloat16"]
        errors, text = self.plan("--preset=off", "--device=cuda", "--gpu=3080", *shape, code=4)
        self.assertIn("RTX 3080: a step does not fit: it takes", text)
        self.assertIn("of --gpu 3080, under preset off; it would fit with ", errors)
        self.assertFalse(json.loads((self.folder / "plan.json").read_text())["gpu"]["step_fits"])
        chosen, _ = self.plan("--preset=auto", "--device=cuda", "--gpu=3080", *shape)
        self.assertLessEqual(chosen["reserved_bytes"], 9 << 30)

    def test_auto_and_presets_have_one_predicted_time(self):
        flags = ["--device=cuda", "--gpu=h100", "--dtype=bfloat16"]
        chosen, text = self.plan("--preset=auto", "--budget=1GiB", *flags)
        self.assertEqual(chosen["step_seconds"], chosen["time"]["seconds"])
        off, text = self.plan("--preset=off", "--pareto", *flags)
        self.assertIn(off["time"]["seconds"],
                      [p["step_seconds"] for p in off["pareto"]["presets"]])
        self.assertEqual(off["pareto"]["speed"], off["time"]["speed"])
        seconds = [p["step_seconds"] for p in off["pareto"]["lossless"]]  # of rising budgets
        self.assertEqual(seconds, sorted(seconds, reverse=True))

    def test_launches_of_a_step_are_counted_by_part(self):
        flags = ["--preset=exact", "--device=cuda", "--dtype=bfloat16"]
        result, text = self.plan(*flags)
        launches = result["launches"]
        self.assertEqual(sum(launches["parts"].values()), launches["total"])
        for part in ("forward", "loss", "backward", "gradient norm", "adamw"):
            self.assertGreater(launches["parts"][part], 0)
        self.assertEqual(launches["host_waits"], 1)
        said = re.search(r"(?m)^launches ([\d,]+): (.*); the host waits for a step once", text)
        self.assertEqual(said[1], f"{launches['total']:,}")
        self.assertEqual(sorted(said[2].split(", ")),
                         sorted(f"{part} {count:,}" for part, count in launches["parts"].items()))
        twice, _ = self.plan(*flags, "--gradient_accumulation_steps=2")
        self.assertEqual(twice["launches"]["parts"]["forward"], 2 * launches["parts"]["forward"])
        self.assertEqual(twice["launches"]["parts"]["adamw"], launches["parts"]["adamw"])
        on_cpu, text = self.plan("--preset=exact")
        self.assertNotIn("launches", on_cpu)
        self.assertNotIn("launches", text)

    def test_the_path_of_f32_products(self):
        flags = ["--preset=off", "--device=cuda", "--gpu=h200"]
        exact, text = self.plan(*flags)
        said = re.search(r"(?m)^products f32 at 67 TFLOP/s; --matmul_precision high: "
                         r"TF32 at 494.5 TFLOP/s, a step of (\S+) ms$", text)
        self.assertIsNotNone(said, text)
        fast, text = self.plan(*flags, "--matmul_precision=high")
        self.assertAlmostEqual(fast["time"]["seconds"] * 1e3 / float(said[1]), 1, places=3)
        self.assertLess(fast["time"]["seconds"], exact["time"]["seconds"])
        self.assertIn("TFLOP/s in TF32", fast["time"]["speed"])
        self.assertIn("--matmul_precision highest: f32 at 67 TFLOP/s", text)
        _, text = self.plan(*flags, "--dtype=bfloat16")
        self.assertNotIn("--matmul_precision", text)


if __name__ == "__main__":
    unittest.main()
