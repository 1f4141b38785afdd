# SPDX-License-Identifier: Apache-2.0
"""Folders of image models that transformers made: images are read as their processors read them,
and by the processors that are written as training read them."""
import io
import json
import re
import tarfile
import unittest

from _program import InFolder, hugging_face, run

torch, transformers, numpy, Image = hugging_face("numpy", "PIL.Image")
NAMES = ["cat", "dog", "emu"]
SCALE = dict(image_mean=[0.5, 0.4, 0.3], image_std=[0.2, 0.25, 0.3])
PROCESSORS = {
    "stretched": ("ViT", dict(size=dict(height=24, width=24), resample=2)),
    "stretched, not scaled": ("ViT", dict(size=dict(height=24, width=24), do_normalize=False)),
    "of 0 to 2": ("ViT", dict(size=dict(height=24, width=24), rescale_factor=1 / 127.5)),
    "cut": ("CLIP", dict(size=dict(shortest_edge=24), crop_size=dict(height=24, width=24), resample=2)),
    "cut, bicubic": ("CLIP", dict(size=dict(shortest_edge=34), crop_size=dict(height=24, width=24))),
    "crop_pct": ("ConvNext", dict(size=dict(shortest_edge=24), crop_pct=0.8, resample=3)),
    "stretched and cut": ("DeiT", dict(size=dict(height=28, width=28),
                                       crop_size=dict(height=24, width=24), resample=2)),
}  # fmt: skip


class ImageProcessors(InFolder):
    def setUp(self):
        super().setUp()
        torch.manual_seed(1)

    def archive(self, name, classes, count=4):
        """An archive of smooth images of 40 x 56 pixels, and these with their classes' names."""
        images, random = [], numpy.random.default_rng(len(name))
        path = self.folder / name
        with tarfile.open(path, "w") as tar:
            for kind in classes:
                for i in range(count):
                    coarse = random.integers(0, 256, (5, 7, 3), dtype=numpy.uint8)
                    image = Image.fromarray(coarse).resize((56, 40), Image.BICUBIC)
                    data = io.BytesIO()
                    image.save(data, "jpeg", quality=95, subsampling=0)
                    info = tarfile.TarInfo(f"{kind}/{i}.jpg")
                    info.size = data.tell()
                    tar.addfile(info, io.BytesIO(data.getvalue()))
                    images.append((Image.open(data).convert("RGB"), kind))
        return path, images

    def model(self, processor, names=NAMES):
        config = transformers.ViTConfig(
            hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            image_size=24, patch_size=8, initializer_range=0.3, num_labels=len(names),
            id2label=dict(enumerate(names)))  # fmt: skip
        model = transformers.ViTForImageClassification(config).eval()
        folder = self.folder / "model"
        model.save_pretrained(folder)
        processor.save_pretrained(folder)
        return model, folder

    def good(self, *arguments):
        done = run(*arguments, cwd=self.folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def loss(self, folder, archive):
        out = self.good("eval", f"--model_name_or_path={folder}", f"--validation_file={archive}")
        return float(re.search(r"loss +([\d.e+-]+)", out.stdout)[1]), out

    def loss_there(self, model, processor, images):
        inputs = processor([image for image, _ in images], return_tensors="pt")
        numbers = {name: int(number) for number, name in model.config.id2label.items()}
        labels = torch.tensor([numbers[name] for _, name in images])
        with torch.no_grad():
            return torch.nn.functional.cross_entropy(model(**inputs).logits, labels).item()

    def test_images_are_read_as_the_processor_reads_them(self):
        archive, images = self.archive("images.tar", NAMES)
        losses = {}
        for name, (kind, settings) in PROCESSORS.items():
            with self.subTest(name):
                torch.manual_seed(1)
                processor = getattr(transformers, f"{kind}ImageProcessor")(**SCALE, **settings)
                model, folder = self.model(processor)
                got, _ = self.loss(folder, archive)
                losses[name] = self.loss_there(model, processor, images)
                self.assertAlmostEqual(got, losses[name], delta=3e-3 * losses[name])
        for one in losses:  # each is a way of its own
            for other in losses:
                if one < other:
                    self.assertGreater(abs(losses[one] / losses[other] - 1), 6e-3, (one, other))

    def test_what_is_written_reads_images_as_training_did(self):
        archive, images = self.archive("images.tar", NAMES)
        self.good("train", "--model=vit-mini", "--task=image-classification",
                  f"--train_file={archive}", "--image_size=24", "--max_steps=3",
                  "--per_device_train_batch_size=4", "--device=cpu", f"--output_dir={self.out}")  # fmt: skip
        got, _ = self.loss(self.out, archive)
        processor = transformers.AutoImageProcessor.from_pretrained(self.out)
        model = transformers.AutoModelForImageClassification.from_pretrained(self.out).eval()
        want = self.loss_there(model, processor, images)
        self.assertAlmostEqual(got, want, delta=3e-3 * want)

    def train_on(self, folder, archive):
        """Trains on the images; returns what the run prints."""
        done = self.good("train", f"--model_name_or_path={folder}", "--task=image-classification",
                         f"--train_file={archive}", "--max_steps=2", "--device=cpu", "--overwrite_output_dir",
                         "--per_device_train_batch_size=4", f"--output_dir={self.out}")  # fmt: skip
        return done.stdout + done.stderr

    def labels(self):
        names = json.loads((self.out / "config.json").read_text())["id2label"]
        return [names[str(i)] for i in range(len(names))]

    def test_a_head_without_names_takes_those_of_the_data(self):
        processor = transformers.ViTImageProcessor(size=dict(height=24, width=24), **SCALE)
        _, folder = self.model(processor, ["LABEL_0", "LABEL_1", "LABEL_2"])
        archive, images = self.archive("images.tar", NAMES)
        fewer, images = self.archive("fewer.tar", NAMES[1:])
        done = run("eval", f"--model_name_or_path={folder}", f"--validation_file={fewer}")
        self.assertEqual(done.returncode, 2)
        self.assertIn("has 2 classes with names, the model 3 without", done.stderr)
        _, out = self.loss(folder, archive)
        self.assertIn("has no names of classes: they are taken to be those of", out.stderr)
        self.train_on(folder, archive)
        self.assertEqual(self.labels(), NAMES)
        got, out = self.loss(self.out, fewer)
        self.assertNotIn("has no names of classes", out.stderr)
        model = transformers.AutoModelForImageClassification.from_pretrained(self.out).eval()
        want = self.loss_there(model, transformers.AutoImageProcessor.from_pretrained(self.out), images)
        self.assertAlmostEqual(got, want, delta=3e-3 * want)

    def test_a_head_for_others_is_not_kept_in_silence(self):
        processor = transformers.ViTImageProcessor(size=dict(height=24, width=24), **SCALE)
        _, folder = self.model(processor, [f"fish{i}" for i in range(20)])
        records = self.folder / "data.bin"  # CIFAR-10's, without names
        records.write_bytes(bytes(range(10)) * 3073)
        self.assertIn("a new head is trained", self.train_on(folder, records))
        self.assertEqual(self.labels(), [f"LABEL_{i}" for i in range(10)])
        self.model(processor, [f"fish{i}" for i in range(10)])
        self.assertIn("its head goes on for these", self.train_on(folder, records))
        self.assertEqual(self.labels(), [f"LABEL_{i}" for i in range(10)])


if __name__ == "__main__":
    unittest.main()
