"""Models of torchvision and timm."""
