# SPDX-License-Identifier: Apache-2.0
"""LoRA's adapters: trained beside peft, planned, resumed, evaluated, generated from, merged, loaded in peft."""
import json
import re
import shutil
import unittest

from _adapter_runs import AdapterRuns, peft, tensor_files, torch, transformers


class Adapters(AdapterRuns):
    def model(self):
        return transformers.AutoModelForCausalLM.from_pretrained(self.base)

    def test_losses_are_those_of_peft(self):
        """From the same A, over steps of AdamW; the base stays as it was."""
        for more in (["--lora_r=3"], ["--lora_target_modules", "q_proj", "v_proj", "--use_rslora=true", "--lora_alpha=5"]):
            with self.subTest(more):
                start, out = f"start-{len(more)}", f"out-{len(more)}"
                self.train(start, *more, "--learning_rate=0")
                self.train(out, *more)
                said = self.check_losses(out, self.model(), start, rate=1e-2, within=2e-5)
                self.assertLess(said[-1], said[0] - 0.1)

    def test_planned_is_measured_and_the_folder_is_pefts(self):
        for preset in ("off", "exact", "recompute", "gact-l1"):
            for dtype in ("float32", "bfloat16"):
                with self.subTest(preset, dtype=dtype):
                    out = self.folder / f"{preset}-{dtype}"
                    self.train(out.name, f"--preset={preset}", f"--dtype={dtype}", "--lora_dropout=0.1")
                    table = (out / "memory.txt").read_text()
                    row = re.search(r"^  peak +([\d,]+) +([\d,]+) +([+-]\d+)$", table, re.M)
                    if row:
                        planned, measured = (int(row[i].replace(",", "")) for i in (1, 2))
                        self.assertLessEqual(abs(measured - planned), 2**14, table)
                    self.assertFalse((out / "model.safetensors").exists())
                    model = peft.PeftModel.from_pretrained(self.model(), out)
                    named = {n.replace(".default", "") for n, _ in model.named_parameters() if "lora_" in n}
                    self.assertEqual(named, set(tensor_files.load_file(out / "adapter_model.safetensors")))

    def test_resumed_is_uninterrupted(self):
        for more in ([], ["--dtype=bfloat16", "--optim=muon", "--lora_dropout=0.1"]):
            whole, part = f"whole-{len(more)}", f"part-{len(more)}"
            self.train(whole, *more)
            self.train(part, *more, "--save_steps=3")
            resume = f"--resume_from_checkpoint={self.folder / part}/checkpoint-3"
            self.train(part, *more, resume)
            self.assertEqual(self.adapters(part), self.adapters(whole))
            saved = self.folder / part / "checkpoint-3"
            peft.PeftModel.from_pretrained(self.model(), saved)  # is a folder of peft's, too
            self.assertFalse((saved / "model.safetensors").exists())
            if more:
                continue
            other = self.model()
            other.model.layers[0].mlp.up_proj.weight.data.add_(1e-3)
            kept = self.base
            self.base = self.folder / "other"
            other.save_pretrained(self.base)
            said = self.refused("train", *self.flags(part, resume))
            self.assertIn("are not those beside which the adapters of", said)
            self.base = kept

    def test_evaluated_generated_from_and_merged(self):
        self.train("out", "--load_best_model_at_end=true", f"--validation_file={self.text}", "--eval_steps=2")
        out, results = self.folder / "out", json.loads((self.folder / "out/all_results.json").read_text())
        self.assertAlmostEqual(self.loss_of(out), results["eval_loss"], delta=1e-5)
        self.assertGreater(self.loss_of(self.base), results["eval_loss"] + 0.1)
        self.done("merge", f"--model_name_or_path={out}", "--output_dir=merged")
        merged = transformers.AutoModelForCausalLM.from_pretrained(self.folder / "merged")
        whole = peft.PeftModel.from_pretrained(self.model(), out).merge_and_unload()
        self.check_same(merged, whole, within=1e-6)
        self.assertAlmostEqual(self.loss_of(self.folder / "merged"), results["eval_loss"], delta=1e-5)
        prompt = ["generate", "--prompt=abc", "--max_new_tokens=9", "--temperature=0", "--tokenizer=bytes"]
        texts = [self.done(*prompt, f"--model_name_or_path={f}").stdout for f in (out, self.folder / "merged")]
        self.assertEqual(*texts)
        self.assertIn("is not empty", self.refused("merge", f"--model_name_or_path={out}", "--output_dir=merged"))

    def test_nothing_is_merged_twice(self):
        """A merged model is no base of the same adapters; of others it is."""
        self.train("out"), self.done("merge", "--model_name_or_path=out", "--output_dir=merged")
        merge = ["merge", "--base_model=merged", "--output_dir=twice"]
        self.assertIn("the model has the adapters of out/adapter_model.safetensors already", self.refused(*merge, "--model_name_or_path=out"))
        saved = transformers.AutoModelForCausalLM.from_pretrained(self.folder / "merged")
        saved.save_pretrained(self.folder / "saved")  # keeps what config.json says
        config = self.folder / "out/adapter_config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | {"base_model_name_or_path": str(self.folder / "saved")}))
        for command in (["eval", f"--validation_file={self.text}", "--block_size=32"], ["generate", "--prompt=a"], merge[::2]):
            self.assertIn("already (compact_merged_adapters)", self.refused(*command, "--model_name_or_path=out"))
        first, self.base = self.base, self.folder / "merged"
        self.train("more", "--seed=7")
        self.done(*merge, "--model_name_or_path=more")
        self.base = first
        for adapters in ("out", "more"):
            self.assertIn("already", self.refused("merge", "--base_model=twice", f"--model_name_or_path={adapters}", "--output_dir=not"))

    def test_adapters_of_peft_are_merged(self):
        """Another family, too; what cannot be added is refused."""
        torch.manual_seed(2)
        config = transformers.GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=64, n_positions=16)
        base = self.folder / "gpt2"
        transformers.GPT2LMHeadModel(config).save_pretrained(base)
        def adapted(out, **more):
            torch.manual_seed(3)
            lora = peft.LoraConfig(r=2, target_modules=["c_attn", "mlp.c_proj"], fan_in_fan_out=True, **more)
            model = peft.get_peft_model(transformers.GPT2LMHeadModel.from_pretrained(base), lora)
            for name, parameter in model.named_parameters():
                if "lora_B" in name:
                    parameter.data.normal_()
            model.save_pretrained(self.folder / out)
            return model
        merge = ["merge", f"--base_model={base}"]
        want = adapted("plain", use_rslora=True).merge_and_unload()
        self.done(*merge, "--model_name_or_path=plain", "--output_dir=whole")
        got = dict(transformers.GPT2LMHeadModel.from_pretrained(self.folder / "whole").named_parameters())
        for name, parameter in want.named_parameters():
            torch.testing.assert_close(got[name], parameter, rtol=0, atol=1e-6)
        for key, more in (("use_dora", dict(use_dora=True)), ("bias", dict(bias="all")), ("init_lora_weights", dict(init_lora_weights="pissa")),
                          ("rank_pattern", dict(rank_pattern={"c_attn": 3})),
                          ("modules_to_save", dict(modules_to_save=["wte"]))):  # fmt: skip
            adapted(key, **more)
            said = self.refused(*merge, f"--model_name_or_path={key}", "--output_dir=not")
            self.assertIn(key, said)
        bare = self.folder / "bare"  # names without `transformer.`, as on the hub
        transformers.GPT2LMHeadModel.from_pretrained(base).transformer.save_pretrained(bare)
        self.assertIn("h.0.attn.c_attn.weight", tensor_files.load_file(bare / "model.safetensors"))
        self.done("merge", f"--base_model={bare}", "--model_name_or_path=plain", "--output_dir=under/whole")
        got = dict(transformers.GPT2LMHeadModel.from_pretrained(self.folder / "under/whole").named_parameters())
        for name, parameter in want.named_parameters():
            torch.testing.assert_close(got[name], parameter, rtol=0, atol=1e-6)
        (base / "generation_config.json").write_text('{"temperature": 0.5}')
        (base / "tokenizer.json").write_text('{"of": "the base"}')
        for name, text in (("tokenizer.json", '{"of": "adapters"}'), ("chat_template.jinja", "turns")):
            (self.folder / "plain" / name).write_text(text)
        self.done(*merge, "--model_name_or_path=plain", "--output_dir=kept")
        self.assertEqual((self.folder / "kept/tokenizer.json").read_text(), '{"of": "adapters"}')
        self.assertEqual((self.folder / "kept/chat_template.jinja").read_text(), "turns")
        self.assertIn("0.5", (self.folder / "kept/generation_config.json").read_text())
        shutil.copytree(self.folder / "plain", self.folder / "both")
        shutil.copy(base / "model.safetensors", self.folder / "both")
        self.assertIn("beside adapter_model.safetensors", self.refused(*merge, "--model_name_or_path=both", "--output_dir=not"))
        shutil.copytree(base, self.folder / "codes")
        tensors = tensor_files.load_file(base / "model.safetensors")
        tensors["transformer.h.0.attn.c_attn.weight"] = tensors["transformer.h.0.attn.c_attn.weight"].to(torch.int8)
        tensor_files.save_file(tensors, self.folder / "codes/model.safetensors", {"format": "pt"})
        said = self.refused("merge", f"--base_model={self.folder / 'codes'}", "--model_name_or_path=plain", "--output_dir=codes2")
        self.assertIn("is for a matrix of float32", said)
        said = self.refused("eval", "--model_name_or_path=plain", f"--validation_file={self.text}")
        self.assertIn("`compact merge` makes a model of them", said)
        base.rename(self.folder / "moved")
        said = self.refused("merge", "--model_name_or_path=plain", "--output_dir=not")
        self.assertIn("base_model_name_or_path must be the folder of a model with weights, is", said)
        merge = ["merge", f"--base_model={self.folder / 'moved'}"]
        other = transformers.GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=64, n_positions=16)
        lora = peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True)
        peft.get_peft_model(transformers.GPT2LMHeadModel(other), lora).save_pretrained(self.folder / "other")
        self.assertIn("is for another shape", self.refused(*merge, "--model_name_or_path=other", "--output_dir=not"))
        self.assertFalse((self.folder / "not").exists())  # a merge that ends early leaves nothing
        self.assertEqual([p.name for p in self.folder.iterdir() if p.name.startswith(".compact")], [])

    def test_plans(self):
        plan = ["--preset=exact", "--json=plan.json", "--per_device_train_batch_size=1", "--block_size=64"]
        def planned(*more):
            self.done("plan", "--model=llama-60m", *plan, *more)
            return json.loads((self.folder / "plan.json").read_text())["peak_bytes"]
        whole, adapters = planned(), planned("--use_peft=true")
        self.assertLess(adapters, whole / 2)  # no moments and gradients of 60 M parameters
        few = planned("--use_peft=true", "--lora_target_modules", "q_proj")
        self.assertLess(few, adapters)
        budget = ["--preset=auto", f"--budget={adapters * 3 // 2}B", "--allow=quantize"]
        self.done("plan", "--model=llama-60m", "--use_peft=true", "--json=plan.json", *budget)
        for dropout, keys in ((0, 1), (0.1, 2), (0.2, 2), (0, 2)):  # speeds are measured with dropout and without it
            self.done("plan", "--model=llama-tiny", "--use_peft=true", f"--lora_dropout={dropout}", "--block_size=32",
                      "--preset=auto", "--budget=1GiB", f"--cache_dir={self.folder / 'speeds'}")  # fmt: skip
            self.assertEqual(len(json.loads((self.folder / "speeds/speed.json").read_text())), keys)

    def test_what_cannot_be_is_refused(self):
        def of(*more):
            return self.refused("train", *self.flags("out", *more))
        self.assertIn("the model has no `c_attn`; its products are q_proj, k_proj,", of("--lora_target_modules=c_attn"))
        self.assertIn("must be names as q_proj", of("--lora_target_modules", "all-linear", "q_proj"))
        self.assertIn("beside adapters (--use_peft) no gradient is projected", of("--preset=compact"))
        self.assertIn("must be a folder with weights", self.refused(
            "train", *self.flags("out", "--model=llama-tiny")[1:]))  # fmt: skip
        self.assertIn("--master_weights: adapters are float32", of("--master_weights=true", "--dtype=bfloat16"))
        self.assertIn("--lora_dropout must be in [0, 1)", of("--lora_dropout=1"))
        for line in ("grad layers.0.attn.qkv = full:lr_scale=2", "moment layers.*.mlp.down = bf16"):
            self.assertIn("beside adapters (--use_peft) all weights but theirs are frozen", of("--set", line))
        self.train("same", "--set", "grad layers.0.attn.qkv = frozen")  # as it is already
        config = transformers.GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=257, n_positions=64)
        transformers.GPT2LMHeadModel(config).save_pretrained(self.folder / "gpt2")
        self.assertIn("are for decoders of LLaMA's", of(f"--model_name_or_path={self.folder / 'gpt2'}"))
        self.train("once", "--max_steps=1")
        self.assertIn("has adapters already", of(f"--model_name_or_path={self.folder / 'once'}"))


if __name__ == "__main__":
    unittest.main()
