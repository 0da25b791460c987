"""Train the digits fixture: a three-layer torch.nn.TransformerEncoder on scikit-learn's digits.

    python train.py [OUT_DIR]        (default: the folder of this script)

Writes model.safetensors and config.json. Needs torch, scikit-learn, safetensors, numpy.
"""

import json
import pathlib
import sys

import numpy as np
import torch
from safetensors.torch import save_file
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

SEED = 0
HELD_OUT_FRACTION = 0.25
EPOCHS = 80
BATCH = 64
PEAK_LR = 3e-3

# Head size 60 / 4 = 15: a converter that guesses a power-of-two head size, or mistakes the
# head count for the head size, cannot get this model right by luck.
CONFIG = {
    "model_type": "digits_transformer_encoder",
    "num_attention_heads": 4,
    "hidden_size": 60,
    "num_hidden_layers": 3,
    "intermediate_size": 120,
    "image_size": 8,
    "patch_size": 2,
    "num_tokens": 16,
    "token_size": 4,
    "num_labels": 10,
    "norm_first": True,
    "hidden_act": "relu",
    "layer_norm_eps": 1e-5,
    "pooling": "mean",
    "pixel_scale": 16.0,
}


def tokens(images, config):
    """[n, size, size] pixel values -> [n, tokens, patch * patch] float32, row-major patches."""
    size, patch = config["image_size"], config["patch_size"]
    side = size // patch
    x = np.asarray(images, dtype=np.float32) / np.float32(config["pixel_scale"])
    x = x.reshape(-1, side, patch, side, patch).transpose(0, 1, 3, 2, 4)
    return np.ascontiguousarray(x.reshape(-1, side * side, patch * patch))


def split():
    """The fixed split, shared with classify_per_head.py so that both judge the same images."""
    digits = load_digits()
    return train_test_split(
        digits.images,
        digits.target,
        test_size=HELD_OUT_FRACTION,
        random_state=SEED,
        stratify=digits.target,
    )


class DigitsEncoder(nn.Module):
    def __init__(self, config, dropout=0.1):
        super().__init__()
        width = config["hidden_size"]
        self.embed = nn.Linear(config["token_size"], width)
        self.positions = nn.Parameter(0.02 * torch.randn(config["num_tokens"], width))
        layer = nn.TransformerEncoderLayer(
            d_model=width,
            nhead=config["num_attention_heads"],
            dim_feedforward=config["intermediate_size"],
            dropout=dropout,
            activation=config["hidden_act"],
            layer_norm_eps=config["layer_norm_eps"],
            batch_first=True,
            norm_first=config["norm_first"],
        )
        self.encoder = nn.TransformerEncoder(
            layer, config["num_hidden_layers"], enable_nested_tensor=False
        )
        # TransformerEncoder copies one layer, so all layers would start with equal weights
        # and a test could not tell layers apart as clearly; redraw each one.
        for copy in self.encoder.layers:
            for module in copy.modules():
                if hasattr(module, "reset_parameters"):
                    module.reset_parameters()
            copy.self_attn._reset_parameters()
        self.norm = nn.LayerNorm(width, eps=config["layer_norm_eps"])
        self.classifier = nn.Linear(width, config["num_labels"])

    def forward(self, x):
        x = self.encoder(self.embed(x) + self.positions)
        return self.classifier(self.norm(x.mean(dim=1)))


def main():
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parent
    # One thread: the order of float additions, hence the bytes, must not depend on core count.
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(SEED)

    train_images, test_images, train_labels, test_labels = split()
    train_x = torch.from_numpy(tokens(train_images, CONFIG))
    train_y = torch.from_numpy(train_labels).long()

    model = DigitsEncoder(CONFIG)
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LR, weight_decay=0.01)
    steps = EPOCHS * -(-len(train_x) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK_LR, total_steps=steps)
    loss_of = nn.CrossEntropyLoss(label_smoothing=0.05)

    model.train()
    for epoch in range(EPOCHS):
        total = 0.0
        for index in torch.randperm(len(train_x)).split(BATCH):
            loss = loss_of(model(train_x[index]), train_y[index])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            total += loss.item() * len(index)
        if (epoch + 1) % 10 == 0:
            print(f"epoch {epoch + 1:3d}  training loss {total / len(train_x):.4f}", flush=True)

    # The last epoch is kept whatever it scores: choosing one by the held-out images would
    # make the reported accuracy optimistic.
    model.eval()
    with torch.no_grad():
        predicted = model(torch.from_numpy(tokens(test_images, CONFIG))).argmax(1).numpy()
    right = int((predicted == test_labels).sum())
    print(f"held out: {right} of {len(test_labels)} right ({right / len(test_labels):.4f})")

    state = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    save_file(state, str(out / "model.safetensors"), metadata={"format": "pt"})
    config = dict(
        CONFIG,
        training_images=len(train_labels),
        held_out_images=len(test_labels),
        held_out_accuracy=round(right / len(test_labels), 6),
    )
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")


if __name__ == "__main__":
    main()
