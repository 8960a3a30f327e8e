"""Files from and for people: weights, checkpoints' tensors, downloads, archives.

weights      weights in and out of files of any format
pth          PyTorch's .pth, read without PyTorch and without running anything inside
tensorfile   .safetensors
pretrained   a trained model from its weights
published    the authors' weights, downloaded
download     downloads that resume
archive      .tgz from strangers, unpacked safely
atomic       files that are complete or not there at all
"""
